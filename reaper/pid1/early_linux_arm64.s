#include "textflag.h"

// A g of zeroes: its stackguard0 is below every stack pointer, so no function's
// prologue finds its stack too small. R28 is g.
GLOBL zerog<>(SB), NOPTR, $1024
GLOBL childStack<>(SB), NOPTR, $65536
GLOBL plainStack<>(SB), NOPTR, $262144
GLOBL entered<>(SB), NOPTR, $8
GLOBL owner<>(SB), NOPTR, $8

// early is where the kernel starts a program that is linked with -E: at 0(RSP) is
// argc, then argv. Block everything, have boot do the work; if it comes back, the
// mask is as it was, and the runtime starts. The set is on the stack, so that no
// page must be read in before, but for the code's.
TEXT ·early(SB),NOSPLIT|NOFRAME,$0
	MOVD	RSP, R19
	SUB	$64, RSP
	MOVD	R19, 8(RSP) // boot's sp
	MOVD	$-1, R4
	MOVD	R4, 24(RSP)
	MOVD	$135, R8 // rt_sigprocmask(SIG_BLOCK, 24(RSP), 16(RSP), 8)
	MOVD	$0, R0
	ADD	$24, RSP, R1
	ADD	$16, RSP, R2 // boot's mask
	MOVD	$8, R3
	SVC
	MOVD	R19, 40(RSP)
	MOVD	16(RSP), R4
	MOVD	R4, 32(RSP)
	MOVD	$1, R0
	MOVD	R0, entered<>(SB)
	MOVD	$zerog<>(SB), g
	BL	·boot(SB)
	MOVD	$135, R8 // rt_sigprocmask(SIG_SETMASK, 32(RSP), 0, 8)
	MOVD	$2, R0
	ADD	$32, RSP, R1
	MOVD	$0, R2
	MOVD	$8, R3
	SVC
	MOVD	40(RSP), R4
	MOVD	R4, RSP
	MOVD	$0, R0
	B	_rt0_arm64_linux(SB)

// func enteredEarly() bool
TEXT ·enteredEarly(SB),NOSPLIT,$0-1
	MOVD	entered<>(SB), R0
	MOVB	R0, ret+0(FP)
	RET

// func leaveRuntime(arg unsafe.Pointer)
//
// On the runtime's thread: from here on as in early. It does not return.
TEXT ·leaveRuntime(SB),NOSPLIT,$0-8
	MOVD	arg+0(FP), R12
	MOVD	$zerog<>(SB), g
	MOVD	$plainStack<>+262144(SB), R4
	SUB	$64, R4
	MOVD	R4, RSP
	MOVD	R12, 8(RSP)
	BL	·bootPlain(SB)
	BRK

// func vfork(arg unsafe.Pointer) (pid uintptr)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD): the child runs childMain(arg) on a stack of
// its own and never returns; we go on when it has executed or ended.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-16
	MOVD	arg+0(FP), R19
	MOVD	$220, R8
	MOVD	$0x4111, R0
	MOVD	$childStack<>+65536(SB), R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	SVC
	CBZ	R0, inchild
	MOVD	R0, pid+8(FP)
	RET
inchild:
	MOVD	$0, R29
	SUB	$64, RSP
	MOVD	R19, 8(RSP)
	BL	·childMain(SB)
	BRK

// func setOwner(tid uintptr): whom redirect gives signals to.
TEXT ·setOwner(SB),NOSPLIT,$0-8
	MOVD	tid+0(FP), R0
	MOVD	R0, owner<>(SB)
	RET

// redirect is a signal handler: it gives the signal to the owner, where it is
// blocked and waited for. One that the runtime sent itself is dropped (SI_TKILL).
TEXT redirect<>(SB),NOSPLIT|NOFRAME,$0
	MOVW	8(R1), R3
	CMNW	$6, R3
	BEQ	done
	MOVD	R0, R9
	MOVD	$172, R8 // getpid
	SVC
	MOVD	owner<>(SB), R1
	MOVD	R9, R2
	MOVD	$131, R8 // tgkill
	SVC
done:
	RET

TEXT sigreturn<>(SB),NOSPLIT|NOFRAME,$0
	MOVD	$139, R8 // rt_sigreturn
	SVC
	BRK

// func handler() (entry, restorer uintptr)
TEXT ·handler(SB),NOSPLIT,$0-16
	MOVD	$redirect<>(SB), R0
	MOVD	R0, entry+0(FP)
	MOVD	$sigreturn<>(SB), R0
	MOVD	R0, restorer+8(FP)
	RET
