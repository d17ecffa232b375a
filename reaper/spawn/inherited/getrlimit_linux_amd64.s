#include "textflag.h"

// func getrlimit(resource uintptr, l *Limit) (errno uintptr)
TEXT ·getrlimit(SB),NOSPLIT,$0-24
	MOVL	$302, AX // prlimit64
	XORL	DI, DI
	MOVQ	resource+0(FP), SI
	XORL	DX, DX
	MOVQ	l+8(FP), R10
	SYSCALL
	MOVQ	AX, errno+16(FP)
	RET
