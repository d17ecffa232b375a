#include "textflag.h"

DATA one<>+0(SB)/8, $1
GLOBL one<>(SB), RODATA|NOPTR, $8

// onSignal adds 1 to the event counter wakeFD, which never blocks.
TEXT onSignal<>(SB),NOSPLIT|NOFRAME,$0
	MOVL	$1, AX // write
	MOVL	·wakeFD(SB), DI
	LEAQ	one<>(SB), SI
	MOVL	$8, DX
	SYSCALL
	RET

TEXT sigreturn<>(SB),NOSPLIT|NOFRAME,$0
	MOVL	$15, AX // rt_sigreturn
	SYSCALL
	INT	$3

// func handler() (entry, restorer uintptr)
TEXT ·handler(SB),NOSPLIT,$0-16
	LEAQ	onSignal<>(SB), AX
	MOVQ	AX, entry+0(FP)
	LEAQ	sigreturn<>(SB), AX
	MOVQ	AX, restorer+8(FP)
	RET
