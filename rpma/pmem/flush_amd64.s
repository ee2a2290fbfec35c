#include "textflag.h"

// func features() uint32
TEXT ·features(SB), NOSPLIT, $0-4
	MOVL	$0, ret+0(FP)
	XORL	AX, AX
	CPUID
	CMPL	AX, $7
	JLT	none
	MOVL	$7, AX
	XORL	CX, CX
	CPUID
	MOVL	BX, ret+0(FP)
none:
	RET

// func flushLines(p *byte, n, instruction int)
TEXT ·flushLines(SB), NOSPLIT, $0-24
	MOVQ	p+0(FP), AX
	MOVQ	n+8(FP), CX
	MOVQ	instruction+16(FP), DX
	ADDQ	AX, CX         // the end
	ANDQ	$~63, AX       // the line that p is in
	CMPQ	DX, $1
	JEQ	opt
	JGT	wb
one:
	CLFLUSH	(AX)
	ADDQ	$64, AX
	CMPQ	AX, CX
	JB	one
	JMP	done
opt:
	CLFLUSHOPT	(AX)
	ADDQ	$64, AX
	CMPQ	AX, CX
	JB	opt
	JMP	done
wb:
	CLWB	(AX)
	ADDQ	$64, AX
	CMPQ	AX, CX
	JB	wb
done:
	SFENCE
	RET
