# The code to which a signal handler returns: musl's code, with unwind information that musl's lacks. This information leads to
# the interrupted frame. Without it, the stack of a profiler's sample (cpu.rs) ends in the profiler's own signal handler.
#
# When the handler has returned, the stack pointer points to a ucontext from the kernel. The registers of the interrupted
# function start at its byte 40.

	.text
	.cfi_startproc
	.cfi_signal_frame
	.macro saved register, low, high
	.cfi_escape 0x10, \register, 3, 0x77, \low, \high	# DW_CFA_expression: saved at the stack pointer (r7) plus an offset
	.endm
	.cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06		# DW_CFA_def_cfa_expression: the saved stack pointer, at 160
	saved 8, 0xa8, 0x00		# r8 at 40, in LEB128
	saved 9, 0xb0, 0x00
	saved 10, 0xb8, 0x00
	saved 11, 0xc0, 0x00
	saved 12, 0xc8, 0x00
	saved 13, 0xd0, 0x00
	saved 14, 0xd8, 0x00
	saved 15, 0xe0, 0x00
	saved 5, 0xe8, 0x00		# rdi
	saved 4, 0xf0, 0x00		# rsi
	saved 6, 0xf8, 0x00		# rbp
	saved 3, 0x80, 0x01		# rbx at 128
	saved 1, 0x88, 0x01		# rdx
	saved 0, 0x90, 0x01		# rax
	saved 2, 0x98, 0x01		# rcx
	saved 7, 0xa0, 0x01		# rsp
	saved 16, 0xa8, 0x01		# rip
	# Profilers look up a return address by the byte before it. This byte has a name, so that they can omit the frame (cpu.rs).
__restore:
	nop
	.globl __restore_rt
	.hidden __restore_rt
	.type __restore_rt, @function
__restore_rt:
	mov $15, %rax			# rt_sigreturn
	syscall
	.size __restore_rt, . - __restore_rt
	.cfi_endproc
	.section .note.GNU-stack, "", @progbits
