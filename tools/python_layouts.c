/*
 * Prints where CPython 3.10 to 3.12 keeps what a walk of its frames needs, for the table in
 * otel_gpu/stacks/python_layouts.py. Build it with the headers of the version:
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

int main(void)
{
	printf("version %s\n", PY_VERSION);
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
	return 0;
}
