// What Python sees: a session, which owns the engine and its kernels. The only translation unit, for torch's headers take
// most of the time that a build takes.
#include "readers.h"
#include "registration.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace py = pybind11;

namespace grape {

class Session {
 public:
  explicit Session(const Settings& settings) : engine_(std::make_shared<Engine>(settings)), registration_(engine_) {}

  std::vector<std::string> open() {
    auto missing = Readers::install(engine_.get());
    registration_.open();
    engine_->open();
    join();
    return missing;
  }

  // Between calls of what is served. Kernels stay, and nobody comes to them: the key is off.
  void pause() {
    leave();
    py::gil_scoped_release release;
    engine_->pause();
  }
  void resume() {
    engine_->open();
    join();
  }

  // Ends deferring. Kernels stay, and pass everything through, until nothing can carry the key any more.
  void close() {
    std::exception_ptr raised;
    try {
      py::gil_scoped_release release;
      engine_->close();
    } catch (...) {
      raised = std::current_exception();
    }
    if (Readers::engine == engine_.get()) Readers::restore();
    leave();
    if (raised) std::rethrow_exception(raised);
  }
  void take_back() {
    leave();
    registration_.close();
  }

  static void join() { c10::impl::tls_set_dispatch_key_included(KEY, true); }
  static void leave() { c10::impl::tls_set_dispatch_key_included(KEY, false); }

  void flush() {
    py::gil_scoped_release release;
    engine_->flush();
  }
  void in_forked_child() { engine_->in_forked_child(); }
  size_t kernels() const { return registration_.size(); }

  py::dict evidence() const {
    const Counts& c = engine_->counts;
    py::dict written, all;
    for (size_t i = 1; i < REASONS.size(); i++)
      if (c.written[i]) written[REASONS[i]] = c.written[i];
    all["seen"] = c.seen;
    all["matched"] = c.matched;
    all["issued"] = c.issued;
    all["written"] = written;
    all["segments"] = c.segments;
    all["partial"] = c.partial;
    all["diverged"] = c.diverged;
    all["entered"] = c.entered;
    all["recorded"] = c.recorded;
    all["raised"] = c.raised;
    all["bytes"] = engine_->bytes();
    all["fragments"] = engine_->fragments();
    all["steps"] = engine_->steps();
    all["copied_in"] = engine_->copies().in;
    all["copied_out"] = engine_->copies().out;
    all["copied_bytes"] = engine_->copies().bytes;
    all["kept"] = engine_->copies().kept;
    all["floated"] = engine_->copies().floated;
    all["own_ns"] = c.sampled ? c.sampled_ns * 64 : 0;
    all["last_divergence"] = engine_->last_divergence();
    return all;
  }

 private:
  std::shared_ptr<Engine> engine_;
  Registration registration_;
};

}  // namespace grape

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using grape::Session;
  using grape::Settings;
  py::class_<Settings>(m, "Settings")
      .def(py::init<>())
      .def_readwrite("longest", &Settings::longest)
      .def_readwrite("shortest", &Settings::shortest)
      .def_readwrite("furthest", &Settings::furthest)
      .def_readwrite("hot", &Settings::hot)
      .def_readwrite("budget", &Settings::budget)
      .def_readwrite("strays", &Settings::strays)
      .def_readwrite("issue", &Settings::issue);
  py::class_<Session>(m, "Session")
      .def(py::init<const Settings&>())
      .def("open", &Session::open)
      .def("pause", &Session::pause)
      .def("resume", &Session::resume)
      .def("close", &Session::close)
      .def("take_back", &Session::take_back)
      .def_static("join", &Session::join)
      .def_static("leave", &Session::leave)
      .def("flush", &Session::flush)
      .def("in_forked_child", &Session::in_forked_child)
      .def("kernels", &Session::kernels)
      .def("evidence", &Session::evidence);
  m.def("refusal", &grape::Registration::refusal);
  m.def("in_backward", [] { return torch::autograd::get_current_graph_task_id() != -1; });
  m.def("key_included", [] { return c10::impl::tls_is_dispatch_key_included(grape::KEY); });
}
