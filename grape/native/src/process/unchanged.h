// Whether tensors and objects of Python are as they were, for the guards of regions, which ask this around each launch.
//
// Yes only where Python's own comparison, beside the caller, says yes too; where this says no, that one decides. What
// is compared with belongs to the caller: tuples that hold every object, and bytes.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <exception>
#include <vector>

namespace grape {

class Unchanged {
  using Words = std::vector<uint64_t>;

 public:
  // Of tensors of torch's own classes all that a guard compares, as words. Empty for what only Python can compare.
  static Words picture(PyObject* tensors) {
    Words words;
    bool drawn = draw(tensors, [&](uint64_t word) { return words.push_back(word), true; });
    return drawn ? words : Words{};
  }
  static bool is_pictured(PyObject* tensors, PyObject* picture) {
    Reader words(picture);
    return draw(tensors, [&](uint64_t word) { return !words.is_over() && words.next() == word; }) && words.is_over();
  }

  // `addresses`: a word for each tensor.
  static bool lie_at(PyObject* tensors, PyObject* addresses) {
    Reader words(addresses);
    return quietly([&] {
      for (Py_ssize_t i = 0, count = PyTuple_GET_SIZE(tensors); i < count; ++i)
        if (words.is_over() || words.next() != address(THPVariable_Unpack(PyTuple_GET_ITEM(tensors, i)))) return false;
      return words.is_over();
    });
  }

  // `present`: a byte for each leaf, 1 where it has a gradient.
  static bool are_graded(PyObject* leaves, PyObject* present) {
    Py_ssize_t count = PyTuple_GET_SIZE(leaves);
    if (PyBytes_GET_SIZE(present) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      bool graded = THPVariable_Unpack(PyTuple_GET_ITEM(leaves, i)).unsafeGetTensorImpl()->grad().defined();
      if (graded != bool(PyBytes_AS_STRING(present)[i])) return false;
    }
    return true;
  }

  // Of dicts and lists, how many items there are, and where those stand that count: of each dict all, or those that its
  // `counted` has. Their keys and values go into `items`.
  static Words places(PyObject* dicts, PyObject* counted, PyObject* lists, PyObject* items) {
    Words words;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dicts); ++i) {
      PyObject *dict = PyTuple_GET_ITEM(dicts, i), *names = PyTuple_GET_ITEM(counted, i), *key, *value;
      words.push_back(PyDict_GET_SIZE(dict));
      size_t count = words.size();
      words.push_back(0);
      for (Py_ssize_t place = 0, before = 0; PyDict_Next(dict, &place, &key, &value); before = place) {
        if (names != Py_None && PySequence_Contains(names, key) != 1) continue;
        ++words[count];
        words.push_back(before);
        PyList_Append(items, key);
        PyList_Append(items, value);
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lists); ++i) {
      PyObject* list = PyTuple_GET_ITEM(lists, i);
      words.push_back(PyList_GET_SIZE(list));
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); ++j) PyList_Append(items, PyList_GET_ITEM(list, j));
    }
    return words;
  }
  // `places` and `items` as above. A place where another key stands now says nothing about where the key is.
  static bool hold(PyObject* dicts, PyObject* lists, PyObject* places, PyObject* items) {
    Reader words(places);
    Py_ssize_t at = 0;
    auto is_next = [&](PyObject* object) { return object == PyTuple_GET_ITEM(items, at++); };
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dicts); ++i) {
      PyObject *dict = PyTuple_GET_ITEM(dicts, i), *key, *value;
      if (uint64_t(PyDict_GET_SIZE(dict)) != words.next()) return false;
      for (uint64_t left = words.next(); left; --left) {
        Py_ssize_t place = words.next();
        if (!PyDict_Next(dict, &place, &key, &value) || !is_next(key) || !is_next(value)) return false;
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lists); ++i) {
      PyObject* list = PyTuple_GET_ITEM(lists, i);
      if (uint64_t(PyList_GET_SIZE(list)) != words.next()) return false;
      for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); ++j)
        if (!is_next(PyList_GET_ITEM(list, j))) return false;
    }
    return true;
  }

  // In each namespace the name means that value, or nothing where that is `absent`.
  static bool mean(PyObject* namespaces, PyObject* names, PyObject* values, PyObject* absent) {
    return each(namespaces, names, values, [&](PyObject* space, PyObject* name, PyObject* then) {
      PyObject* now = PyDict_GetItemWithError(space, name);
      if (!now && PyErr_Occurred()) return PyErr_Clear(), false;
      return (now ? now : absent) == then;
    });
  }
  // Each owner has that value under the name: functions, cells, classes.
  static bool have(PyObject* owners, PyObject* names, PyObject* values) {
    return each(owners, names, values, [](PyObject* owner, PyObject* name, PyObject* then) {
      PyObject* now = PyFunction_Check(owner) ? of_function(owner, name) : nullptr;
      if (now) return now == then;
      now = PyObject_GetAttr(owner, name);
      if (!now) return PyErr_Clear(), false;
      Py_DECREF(now);
      return now == then;
    });
  }
  // Each object is of the class, and that dict holds its attributes, unless it is None.
  static bool are_of(PyObject* objects, PyObject* classes, PyObject* dicts) {
    return each(objects, classes, dicts, [](PyObject* object, PyObject* cls, PyObject* then) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != cls) return false;
      return then == Py_None || attributes(object) == then;
    });
  }

 private:
  // Not to be followed: nothing holds it but the object. Null where it has none.
  static PyObject* attributes(PyObject* object) {
    PyObject* found = PyObject_GenericGetDict(object, nullptr);
    found ? Py_DECREF(found) : PyErr_Clear();
    return found;
  }

  // Borrowed, and without the audit event that Python raises; null for other attributes.
  static PyObject* of_function(PyObject* function, PyObject* name) {
    auto is = [name](const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; };
    auto or_none = [](PyObject* found) { return found ? found : Py_None; };
    if (is("__code__")) return PyFunction_GET_CODE(function);
    if (is("__defaults__")) return or_none(PyFunction_GET_DEFAULTS(function));
    return is("__kwdefaults__") ? or_none(PyFunction_GET_KW_DEFAULTS(function)) : nullptr;
  }

  class Reader {
   public:
    explicit Reader(PyObject* bytes) : at_(PyBytes_AS_STRING(bytes)), end_(at_ + PyBytes_GET_SIZE(bytes)) {}
    bool is_over() const { return at_ == end_; }
    uint64_t next() {
      uint64_t word;
      std::memcpy(&word, at_, sizeof word);
      at_ += sizeof word;
      return word;
    }

   private:
    const char *at_, *end_;
  };

  template <class F>
  static bool each(PyObject* one, PyObject* two, PyObject* three, F f) {
    Py_ssize_t count = PyTuple_GET_SIZE(one);
    if (PyTuple_GET_SIZE(two) != count || PyTuple_GET_SIZE(three) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!f(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(two, i), PyTuple_GET_ITEM(three, i))) return false;
    return true;
  }

  // What torch raises for tensors without memory, sizes or strides.
  template <class F>
  static bool quietly(F f) {
    try {
      return f();
    } catch (const std::exception&) {
      return false;
    }
  }

  static uint64_t address(const at::Tensor& t) { return reinterpret_cast<uint64_t>(t.data_ptr()); }

  // Torch 2.13 names no dimensions any more.
  template <class T>
  static auto has_names(const T& t, int) -> decltype(t.has_names()) {
    return t.has_names();
  }
  template <class T>
  static bool has_names(const T&, long) {
    return false;
  }

  // Hands on each word, until `take` wants no more.
  template <class Take>
  static bool draw(PyObject* tensors, Take take) {
    return quietly([&] {
      if (!take(c10::GradMode::is_enabled())) return false;
      for (Py_ssize_t i = 0, count = PyTuple_GET_SIZE(tensors); i < count; ++i) {
        PyObject* object = PyTuple_GET_ITEM(tensors, i);
        const at::Tensor& t = THPVariable_Unpack(object);
        const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
        if (has_names(t, 0)) return false;
        auto device = impl->device();
        auto sizes = impl->sizes(), strides = impl->strides();
        auto cls = reinterpret_cast<uint64_t>(Py_TYPE(object));
        bool same = take(cls) && take(address(t)) && take(impl->key_set().raw_repr()) &&
                    take(uint64_t(t.scalar_type())) && take(impl->requires_grad()) && take(uint64_t(device.type())) &&
                    take(uint64_t(device.index())) && take(sizes.size());
        for (size_t j = 0; same && j < sizes.size(); ++j) same = take(sizes[j]) && take(strides[j]);
        if (!same) return false;
      }
      return true;
    });
  }
};

// What is handed over are tuples, and bytes that were made here; the callers, of Grape's own, see to that.
inline void define_unchanged(pybind11::module_& m) {
  namespace py = pybind11;
  using H = py::handle;
  auto bytes = [](const std::vector<uint64_t>& words) {
    return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
  };
  m.def("picture", [bytes](H tensors) { return bytes(Unchanged::picture(tensors.ptr())); });
  m.def("is_pictured", [](H tensors, H picture) { return Unchanged::is_pictured(tensors.ptr(), picture.ptr()); });
  m.def("lie_at", [](H tensors, H addresses) { return Unchanged::lie_at(tensors.ptr(), addresses.ptr()); });
  m.def("are_graded", [](H leaves, H present) { return Unchanged::are_graded(leaves.ptr(), present.ptr()); });
  m.def("places", [bytes](H dicts, H counted, H lists) {
    py::list items;
    auto words = Unchanged::places(dicts.ptr(), counted.ptr(), lists.ptr(), items.ptr());
    return py::make_tuple(bytes(words), py::tuple(items));
  });
  m.def("hold", [](H dicts, H lists, H places, H items) {
    return Unchanged::hold(dicts.ptr(), lists.ptr(), places.ptr(), items.ptr());
  });
  m.def("mean", [](H spaces, H names, H values, H absent) {
    return Unchanged::mean(spaces.ptr(), names.ptr(), values.ptr(), absent.ptr());
  });
  m.def("have", [](H owners, H names, H values) { return Unchanged::have(owners.ptr(), names.ptr(), values.ptr()); });
  m.def("are_of", [](H objects, H classes, H dicts) {
    return Unchanged::are_of(objects.ptr(), classes.ptr(), dicts.ptr());
  });
}

}  // namespace grape
