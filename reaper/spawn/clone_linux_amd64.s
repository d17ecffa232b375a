#include "textflag.h"

// func rawClone(nr, a1, a2, a3, entry uintptr, arg *args) uintptr
//
// The child is on a stack of its own, so nothing of this frame is its; the
// kernel keeps R12 and R13 for it. It enters ABIInternal code: the argument in
// AX, X15 zero; R14 (g) is not used there.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-56
	MOVQ	nr+0(FP), AX
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	MOVQ	a3+24(FP), DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$0, R9
	MOVQ	entry+32(FP), R13
	MOVQ	arg+40(FP), R12
	SYSCALL
	TESTQ	AX, AX
	JZ	inchild
	MOVQ	AX, ret+48(FP)
	RET
inchild:
	XORL	BP, BP
	XORPS	X15, X15
	SUBQ	$16, SP
	MOVQ	R12, AX
	CALL	R13
	INT	$3
