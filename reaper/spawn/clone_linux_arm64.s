#include "textflag.h"

// func rawClone(nr, a1, a2, a3, entry uintptr, arg *args) uintptr
//
// The child is on a stack of its own, so nothing of this frame is its; the
// kernel keeps R19 and R20 for it. It enters ABIInternal code: the argument in
// R0; R28 (g) is not used there.
TEXT ·rawClone(SB),NOSPLIT|NOFRAME,$0-56
	MOVD	nr+0(FP), R8
	MOVD	a1+8(FP), R0
	MOVD	a2+16(FP), R1
	MOVD	a3+24(FP), R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	entry+32(FP), R20
	MOVD	arg+40(FP), R19
	SVC
	CBZ	R0, inchild
	MOVD	R0, ret+48(FP)
	RET
inchild:
	MOVD	$0, R29
	SUB	$32, RSP
	MOVD	R19, R0
	CALL	(R20)
	BRK
