#include "textflag.h"

DATA one<>+0(SB)/8, $1
GLOBL one<>(SB), RODATA|NOPTR, $8

// onSignal adds 1 to the event counter wakeFD, which never blocks.
TEXT onSignal<>(SB),NOSPLIT|NOFRAME,$0
	MOVD	$64, R8 // write
	MOVW	·wakeFD(SB), R0
	MOVD	$one<>(SB), R1
	MOVD	$8, R2
	SVC
	RET

TEXT sigreturn<>(SB),NOSPLIT|NOFRAME,$0
	MOVD	$139, R8 // rt_sigreturn
	SVC
	BRK

// func handler() (entry, restorer uintptr)
TEXT ·handler(SB),NOSPLIT,$0-16
	MOVD	$onSignal<>(SB), R0
	MOVD	R0, entry+0(FP)
	MOVD	$sigreturn<>(SB), R0
	MOVD	R0, restorer+8(FP)
	RET
