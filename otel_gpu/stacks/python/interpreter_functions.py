"""
Internal functions of CPython, which merged stacks leave out.

Readers need ``train.py``, the function of an extension, ``cudaMalloc``. The interpreter's functions
between them add nothing, and differ from version to version.
"""

from collections.abc import Mapping
from typing import Final

EVALUATION_LOOP: Final = "_PyEval_EvalFrameDefault"
"""Runs Python code. See :mod:`otel_gpu.stacks.merging`."""

INSTRUCTION: Final = "_TAIL_CALL_"
"""Prefix of the functions that run one instruction each, in builds with tail calls."""

# A star at the end matches any suffix. Functions that a program calls by name (sorted, map), garbage
# collection and the GIL are informative, and stay.
LEFT_OUT: Mapping[str, str] = {
    "enters the loop": (
        "PyEval_EvalCode* PyEval_EvalFrame* _PyEval_EvalCode* _PyEval_EvalFrame _PyEval_Vector "
        "_PyFunction_FastCall* _PyFunction_Vectorcall function_code_fastcall"
    ),
    "calls": (
        "PyCFunction_Call PyObject_Call* PyObject_Vectorcall* PyVectorcall_* "
        "_PyCFunction_FastCall* _PyMethodDef_RawFastCall* _PyObject_Call* _PyObject_FastCall* "
        "_PyObject_MakeTpCall _PyObject_Vectorcall* _PyVectorcall_* _Py_CheckFunctionResult "
        "call_attribute call_function call_method call_unbound* callmethod cfunction_* "
        "classmethoddescr_call context_run do_call_core instancemethod_call method_call "
        "method_vectorcall* object_vacall trace_call_function vectorcall_maybe vectorcall_method "
        "vectorcall_unbound wrapper_call wrapperdescr_call"
    ),
    "type slots": "_Py_slot_* slot_* type_call wrap_*",
    "generators": (
        "PyGen_am_send PyIter_Send _PyGen_Finalize _PyGen_Send _gen_throw async_gen_asend_* "
        "async_gen_athrow_* coro_wrapper_* gen_close* gen_iternext gen_send* gen_throw*"
    ),
    "attributes": (
        "PyObject_GenericGetAttr PyObject_GenericSetAttr PyObject_GetAttr* "
        "PyObject_GetOptionalAttr* PyObject_SetAttr* _PyObject_GenericGetAttrWithDict "
        "_PyObject_GenericSetAttrWithDict _PyObject_GetMethod _PyObject_LookupAttr* "
        "_Py_module_getattro* _Py_type_getattro* func_descr_get getset_get getset_set "
        "module_getattro property_descr_* type_getattro"
    ),
    "operators": (
        "PyIter_Next* PyMapping_* PyNumber_* PyObject_DelItem PyObject_Format PyObject_GetItem "
        "PyObject_GetIter PyObject_Hash PyObject_IsInstance PyObject_IsTrue PyObject_Length "
        "PyObject_Repr PyObject_RichCompare* PyObject_SetItem PyObject_Size PyObject_Str "
        "PySequence_* _PyNumber_* binary_iop* binary_op* do_richcompare ternary_op"
    ),
    "ends objects": (
        "Py_DECREF Py_XDECREF _PyEvalFrameClearAndPop _PyEval_FrameClearAndPop _PyFrame_Clear* "
        "_Py_DECREF _Py_DecRef* _Py_Dealloc _Py_XDECREF clear_gen_frame clear_thread_frame "
        "subtype_dealloc"
    ),
    "runs source": (
        "PyImport_* PyRun_* Py_BytesMain Py_Main Py_RunMain _PyImport_Exec* _PyRun_* "
        "builtin___build_class__ builtin___import__* builtin_eval* builtin_exec* "
        "import_find_and_load import_name pymain_* pyrun_* run_eval_code_obj run_mod"
    ),
    "starts threads": "pythread_wrapper t_bootstrap thread_run",
}
"""Functions to leave out, by purpose; only in the module that has the evaluation loop."""

_NAMES = frozenset(" ".join(LEFT_OUT.values()).split())
_BEGINNINGS = tuple(name[:-1] for name in _NAMES if name.endswith("*"))


def base_name(function: str) -> str:
    """Return a function's name without a compiler's suffixes for parts and copies."""
    return function.partition(".")[0]


def is_left_out(function: str) -> bool:
    """Whether a function of the interpreter is one of ``LEFT_OUT``."""
    name = base_name(function)
    return name in _NAMES or name.startswith(_BEGINNINGS)
