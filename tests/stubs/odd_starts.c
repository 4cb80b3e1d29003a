/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda whose functions begin as compilers and NVIDIA's driver make them, and in ways that leave
 * no room for a probe behind the start. All return 0; what they would do is left out.
 */
#if !defined(__x86_64__)
#error "the starts are of x86-64"
#endif

/* As nearly all of libcuda's: a flag is compared, and a jump follows that it leads to. */
#define AS_THE_DRIVER                                                                              \
	"	cmpl	$0x321cba00, flag(%rip)\n"                                                          \
	"	je	1f\n"                                                                                 \
	"	jmp	*elsewhere(%rip)\n"                                                                  \
	"	nopw	0(%rax,%rax,1)\n"                                                                   \
	"1:\n"

#define FUNCTION(name, code)                                                                       \
	__asm__("	.text\n"                                                                         \
		"	.globl " name "\n"                                                         \
		"	.type " name ", @function\n"                                               \
		"	.p2align 4\n" name ":\n" code "	.size " name ", . - " name "\n")

#define AND_RETURN                                                                                 \
	"	xorl	%eax, %eax\n"                                                                       \
	"	ret\n"

__asm__("	.data\n"
	"flag:	.long	0x321cba00\n"
	"	.p2align 3\n"
	"elsewhere: .quad 0\n"
	"turns:	.long	0\n");

FUNCTION("cuStreamSynchronize", AS_THE_DRIVER AND_RETURN);
/* Its second argument is what is allocated. */
FUNCTION("cuMemAlloc_v2", AS_THE_DRIVER "	movq	$4096, (%rdi)\n" AND_RETURN);
/* Calls another one. */
FUNCTION("cuCtxSynchronize", AS_THE_DRIVER "	pushq	%rbx\n"
					   "	xorl	%edi, %edi\n"
					   "	call	cuStreamSynchronize@PLT\n"
					   "	popq	%rbx\n"
					   "	ret\n");
/* Leaves the rest to another one. */
FUNCTION("cuStreamDestroy_v2", AS_THE_DRIVER "	jmp	cuStreamSynchronize@PLT\n");
/* As PyTorch's reports. */
#define AS_A_REPORT                                                                                \
	"	movq	elsewhere(%rip), %rax\n"                                                            \
	"	pushq	%r14\n"                                                                            \
	"	popq	%r14\n"
FUNCTION("cuEventRecord", AS_A_REPORT AND_RETURN);
FUNCTION("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", AS_A_REPORT AND_RETURN);
FUNCTION("cuEventDestroy_v2", "	endbr64\n"
			      "	pushq	%rbp\n"
			      "	popq	%rbp\n" AND_RETURN);
FUNCTION("cuEventQuery", "	movl	$1, %eax\n"
			 "	jmp	1f\n"
			 "1:\n" AND_RETURN);
/* In each of its calls it gets to the jump five times. */
FUNCTION("cuStreamQuery", "	movl	$5, %eax\n"
			  "1:	decl	%eax\n"
			  "	jnz	1b\n"
			  "	ret\n");
/* A loop whose end is the first jump. */
FUNCTION("cuEventCreate", "	movl	$7, %eax\n"
			  "1:	testl	%eax, %eax\n"
			  "	je	2f\n"
			  "	decl	%eax\n"
			  "	jmp	1b\n"
			  "2:	ret\n");
/* Two names: one of them is for callers that passed the first instruction by. */
FUNCTION("cuEventSynchronize",
	 "	endbr64\n"
	 "	.globl cuStreamWaitEvent\n"
	 "	.type cuStreamWaitEvent, @function\n"
	 "cuStreamWaitEvent:\n"
	 "	pushq	%rbx\n"
	 "	popq	%rbx\n" AND_RETURN "	.size cuStreamWaitEvent, . - cuStreamWaitEvent\n");
FUNCTION("cuCtxSetCurrent", AND_RETURN);
FUNCTION("cuStreamCreate", "	subq	$24, %rsp\n"
			   "	jmp	1f\n"
			   "1:	addq	$24, %rsp\n" AND_RETURN);
FUNCTION("cuEventRecordWithFlags", "	xorl	%edi, %edi\n"
				   "	jmp	1f\n"
				   "1:\n" AND_RETURN);
FUNCTION("cuMemsetD8_v2", "	nop\n" AND_RETURN);
FUNCTION("cuMemsetD16_v2", "	jmp	1f\n"
			   "1:\n" AND_RETURN);
/* Begins four times in each of its calls, as seen from the start and from the jump. */
FUNCTION("cuMemsetD32_v2", "2:\n" AS_THE_DRIVER "	incl	turns(%rip)\n"
			   "	testl	$3, turns(%rip)\n"
			   "	jnz	2b\n" AND_RETURN);
/* Where a debugger puts a breakpoint, it can go on behind it. */
FUNCTION("cuMemsetD8Async", "	cld\n"
			    "	pushq	%rbp\n"
			    "	popq	%rbp\n" AND_RETURN);
/* To be patched while they run, as gcc's ms_hook_prologue and Windows have it: both write what is read. */
FUNCTION("cuMemsetD16Async", "	.byte	0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0\n"
			     "	pushq	%rbp\n"
			     "	popq	%rbp\n" AND_RETURN);
FUNCTION("cuMemsetD32Async", "	movl	%edi, %edi\n"
			     "	pushq	%rbp\n"
			     "	popq	%rbp\n" AND_RETURN);
/* The kernel puts no breakpoint where the file has one. */
FUNCTION("cuModuleLoad", "	int3\n" AND_RETURN);

static int link_all(void)
{
	return 0;
}

/* Found when it is first called, by a function of the same name. */
static int (*find_link(void))(void)
{
	return link_all;
}

int cuLinkComplete(void) __attribute__((ifunc("find_link")));
