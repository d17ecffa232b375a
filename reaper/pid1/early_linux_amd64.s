#include "textflag.h"

// A g of zeroes: its stackguard0 is below every stack pointer, so no function's
// prologue finds its stack too small. The word before it is where the thread
// pointer leads to (-8(FS) is g).
GLOBL zerog<>(SB), NOPTR, $1024
GLOBL tlsword<>(SB), NOPTR, $16
GLOBL childStack<>(SB), NOPTR, $65536
GLOBL plainStack<>(SB), NOPTR, $262144
GLOBL entered<>(SB), NOPTR, $8
GLOBL owner<>(SB), NOPTR, $8

// early is where the kernel starts a program that is linked with -E: at 0(SP) is
// argc, then argv. Block everything, have boot do the work; if it comes back, the
// mask is as it was, and the runtime starts. The set is on the stack, so that no
// page must be read in before, but for the code's.
TEXT ·early(SB),NOSPLIT|NOFRAME,$0
	MOVQ	SP, BX
	SUBQ	$48, SP
	ANDQ	$~15, SP
	MOVQ	BX, 0(SP)  // boot's sp
	MOVQ	$-1, 16(SP)
	MOVL	$14, AX // rt_sigprocmask(SIG_BLOCK, 16(SP), 8(SP), 8)
	XORL	DI, DI
	LEAQ	16(SP), SI
	LEAQ	8(SP), DX // boot's mask
	MOVL	$8, R10
	SYSCALL
	MOVQ	BX, 32(SP)
	MOVQ	8(SP), CX
	MOVQ	CX, 24(SP)
	MOVQ	$1, entered<>(SB)
	LEAQ	zerog<>(SB), AX
	MOVQ	AX, tlsword<>(SB)
	MOVL	$158, AX // arch_prctl(ARCH_SET_FS, ...)
	MOVL	$0x1002, DI
	LEAQ	tlsword<>+8(SB), SI
	SYSCALL
	CALL	·boot(SB)
	MOVL	$14, AX // rt_sigprocmask(SIG_SETMASK, 24(SP), 0, 8)
	MOVL	$2, DI
	LEAQ	24(SP), SI
	XORL	DX, DX
	MOVL	$8, R10
	SYSCALL
	MOVQ	32(SP), SP
	XORL	DX, DX
	JMP	_rt0_amd64_linux(SB)

// func enteredEarly() bool
TEXT ·enteredEarly(SB),NOSPLIT,$0-1
	MOVQ	entered<>(SB), AX
	MOVB	AX, ret+0(FP)
	RET

// func leaveRuntime(arg unsafe.Pointer)
//
// On the runtime's thread: from here on as in early. It does not return.
TEXT ·leaveRuntime(SB),NOSPLIT,$0-8
	MOVQ	arg+0(FP), R12
	LEAQ	zerog<>(SB), AX
	MOVQ	AX, tlsword<>(SB)
	MOVL	$158, AX
	MOVL	$0x1002, DI
	LEAQ	tlsword<>+8(SB), SI
	SYSCALL
	LEAQ	plainStack<>+262144(SB), SP
	SUBQ	$64, SP
	MOVQ	R12, 0(SP)
	CALL	·bootPlain(SB)
	INT	$3

// func vfork(arg unsafe.Pointer) (pid uintptr)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD): the child runs childMain(arg) on a stack of
// its own and never returns; we go on when it has executed or ended.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-16
	MOVQ	arg+0(FP), R12
	MOVL	$56, AX
	MOVL	$0x4111, DI
	LEAQ	childStack<>+65536(SB), SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	SYSCALL
	TESTQ	AX, AX
	JZ	inchild
	MOVQ	AX, pid+8(FP)
	RET
inchild:
	XORL	BP, BP
	SUBQ	$64, SP
	MOVQ	R12, 0(SP)
	CALL	·childMain(SB)
	INT	$3

// func setOwner(tid uintptr): whom redirect gives signals to.
TEXT ·setOwner(SB),NOSPLIT,$0-8
	MOVQ	tid+0(FP), AX
	MOVQ	AX, owner<>(SB)
	RET

// redirect is a signal handler: it gives the signal to the owner, where it is
// blocked and waited for. One that the runtime sent itself is dropped (SI_TKILL).
TEXT redirect<>(SB),NOSPLIT|NOFRAME,$0
	CMPL	8(SI), $-6
	JEQ	done
	MOVL	DI, R8
	MOVL	$39, AX // getpid
	SYSCALL
	MOVL	AX, DI
	MOVQ	owner<>(SB), SI
	MOVL	R8, DX
	MOVL	$234, AX // tgkill
	SYSCALL
done:
	RET

TEXT sigreturn<>(SB),NOSPLIT|NOFRAME,$0
	MOVL	$15, AX // rt_sigreturn
	SYSCALL
	INT	$3

// func handler() (entry, restorer uintptr)
TEXT ·handler(SB),NOSPLIT,$0-16
	LEAQ	redirect<>(SB), AX
	MOVQ	AX, entry+0(FP)
	LEAQ	sigreturn<>(SB), AX
	MOVQ	AX, restorer+8(FP)
	RET
