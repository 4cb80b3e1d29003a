/*
 * Prints where CPython keeps what a walk of its frames needs, for the table in
 * otel_gpu/stacks/python/layouts.py: for 3.10 to 3.12 in bytes, for later versions as numbers of
 * words in the table of offsets that _PyRuntime begins with. Build it with the headers of the
 * version:
 *
 *	gcc -I $(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') \
 *		tools/python_layouts.c && ./a.out
 */
#define Py_BUILD_CORE 1

#include <stddef.h>
#include <stdio.h>

#include <Python.h>
#include <frameobject.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#endif

#define SHOW(name, offset) printf("%s %zu\n", name, (size_t)(offset))
#define SHOW_WORD(name, field)                                                                     \
	SHOW(name,                                                                                 \
	     (offsetof(_Py_DebugOffsets, field) - offsetof(_Py_DebugOffsets, runtime_state)) / 8)

int main(void)
{
	printf("version %s\n", PY_VERSION);
#if PY_VERSION_HEX >= 0x030d0000
	SHOW_WORD("runtime_interpreters", runtime_state.interpreters_head);
	SHOW_WORD("interpreter_next", interpreter_state.next);
	SHOW_WORD("interpreter_threads", interpreter_state.threads_head);
	SHOW_WORD("thread_next", thread_state.next);
	SHOW_WORD("thread_id", thread_state.thread_id);
	SHOW_WORD("thread_frame", thread_state.current_frame);
	SHOW_WORD("frame_code", interpreter_frame.executable);
	SHOW_WORD("frame_previous", interpreter_frame.previous);
	SHOW_WORD("frame_instruction", interpreter_frame.instr_ptr);
	SHOW_WORD("frame_owner", interpreter_frame.owner);
	SHOW_WORD("code_first_line", code_object.firstlineno);
	SHOW_WORD("code_file", code_object.filename);
	SHOW_WORD("code_name", code_object.qualname);
	SHOW_WORD("code_line_table", code_object.linetable);
	SHOW_WORD("code_instructions", code_object.co_code_adaptive);
	SHOW_WORD("text_length", unicode_object.length);
	SHOW_WORD("text_state", unicode_object.state);
	SHOW_WORD("text_ascii", unicode_object.asciiobject_size);
	SHOW_WORD("bytes_length", bytes_object.ob_size);
	SHOW_WORD("bytes_data", bytes_object.ob_sval);
#else
	SHOW("runtime_interpreters", offsetof(_PyRuntimeState, interpreters.head));
	SHOW("interpreter_next", offsetof(PyInterpreterState, next));
	SHOW("thread_next", offsetof(PyThreadState, next));
	SHOW("thread_id", offsetof(PyThreadState, thread_id));
#if PY_VERSION_HEX >= 0x030b0000
	SHOW("interpreter_threads", offsetof(PyInterpreterState, threads.head));
	SHOW("thread_frame", offsetof(PyThreadState, cframe));
	SHOW("c_frame_frame", offsetof(_PyCFrame, current_frame));
	SHOW("frame_code", offsetof(_PyInterpreterFrame, f_code));
	SHOW("frame_previous", offsetof(_PyInterpreterFrame, previous));
	SHOW("frame_instruction", offsetof(_PyInterpreterFrame, prev_instr));
	SHOW("code_name", offsetof(PyCodeObject, co_qualname));
	SHOW("code_instructions", offsetof(PyCodeObject, co_code_adaptive));
#else
	SHOW("interpreter_threads", offsetof(PyInterpreterState, tstate_head));
	SHOW("thread_frame", offsetof(PyThreadState, frame));
	SHOW("frame_code", offsetof(PyFrameObject, f_code));
	SHOW("frame_previous", offsetof(PyFrameObject, f_back));
	SHOW("frame_instruction", offsetof(PyFrameObject, f_lasti));
	SHOW("code_name", offsetof(PyCodeObject, co_name));
#endif
#if PY_VERSION_HEX >= 0x030c0000
	SHOW("frame_owner", offsetof(_PyInterpreterFrame, owner));
	SHOW("shim_owner", FRAME_OWNED_BY_CSTACK);
#elif PY_VERSION_HEX >= 0x030b0000
	SHOW("frame_owner", offsetof(_PyInterpreterFrame, is_entry));
#endif
	SHOW("code_first_line", offsetof(PyCodeObject, co_firstlineno));
	SHOW("code_file", offsetof(PyCodeObject, co_filename));
	SHOW("code_line_table", offsetof(PyCodeObject, co_linetable));
	SHOW("text_length", offsetof(PyASCIIObject, length));
	SHOW("text_state", offsetof(PyASCIIObject, state));
	SHOW("text_ascii", sizeof(PyASCIIObject));
	SHOW("text_compact", sizeof(PyCompactUnicodeObject));
	SHOW("bytes_length", offsetof(PyVarObject, ob_size));
	SHOW("bytes_data", offsetof(PyBytesObject, ob_sval));
#endif
	return 0;
}
