// Storages that Python holds: their bytes are read through that object, without an operator.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>

namespace grape {

// A storage that was shown to Python once keeps its object for good; where nobody but the storage refers to it, who
// wants it has to ask `Tensor.untyped_storage` again, which is watched. Without the GIL: a count that changes meanwhile
// is changed by somebody who holds a reference, so that it was not one.
inline bool is_held_in_python(const c10::StorageImpl* storage) {
  const auto& slot = *const_cast<c10::StorageImpl*>(storage)->pyobj_slot();
  PyObject* object = slot.load_pyobj();
  if (!object) return false;
  if (!slot.has_unique_reference()) return true;
  Py_ssize_t weak = Py_TYPE(object)->tp_weaklistoffset;  // below 0 from Python 3.12 on: in front of the object
  return weak != 0 && *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + weak) != nullptr;
}

// Python has, or had, the tensor.
inline bool has_python_object(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

}  // namespace grape
