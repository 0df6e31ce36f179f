// What Python sees: a session, which owns the engine and its kernels. The only translation unit, for torch's headers take
// most of the time that a build takes.
#include "process/inputs.h"
#include "process/objects.h"
#include "process/readers.h"
#include "process/registration.h"
#include "process/unchanged.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>

namespace py = pybind11;

namespace grape {

class Session {
 public:
  // The device of CUDA with this index, or below 0 the CPU.
  Session(const Settings& settings, int cuda) : engine_(std::make_shared<Engine>(settings, device(cuda))), registration_(engine_) {}

  std::vector<std::string> open() {
    auto missing = Readers::install(engine_.get());
    registration_.open();
    engine_->open();
    c10::impl::tls_set_dispatch_key_included(KEY, true);
    return missing;
  }

  // Between calls of what is served. Kernels stay, and nobody comes to them: the key is off.
  void pause() {
    c10::impl::tls_set_dispatch_key_included(KEY, false);
    py::gil_scoped_release release;
    engine_->pause();
  }
  void resume() {
    engine_->open();
    c10::impl::tls_set_dispatch_key_included(KEY, true);
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
    engine_->on_capture(nullptr);
    {
      py::gil_scoped_release release;
      engine_->on_place(nullptr);
    }
    c10::impl::tls_set_dispatch_key_included(KEY, false);
    if (raised) std::rethrow_exception(raised);
  }
  void take_back() {
    c10::impl::tls_set_dispatch_key_included(KEY, false);
    registration_.close();
  }

  // Another thread begins and ends.
  void join() {
    engine_->joined();
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  }
  void leave() {
    c10::impl::tls_set_dispatch_key_included(KEY, false);
    engine_->left();
  }

  // Ctrl-C: torch hands on its own kind of error only.
  template <class F>
  static auto with_errors_of_torch(F f) {
    try {
      return f();
    } catch (py::error_already_set& raised) {
      raised.restore();
      python_error error;
      error.persist();
      throw error;
    }
  }

  // May be let go on any thread.
  static std::shared_ptr<py::function> held_here(py::function function) {
    return {new py::function(std::move(function)), [](py::function* f) {
      py::gil_scoped_acquire gil;
      delete f;
    }};
  }

  // Called where a segment should be captured, on any thread.
  void on_capture(py::function capture) {
    engine_->on_capture([held = held_here(std::move(capture))] {
      py::gil_scoped_acquire gil;
      if (is_traced()) return false;
      with_errors_of_torch([&] { (*held)(); });
      return true;
    });
  }

  // Called where the engine wants to know where in the person's code an operator stands, on any thread.
  void on_place(py::function here) {
    Places::Placer placer = placer_of(std::move(here));
    py::gil_scoped_release release;
    engine_->on_place(std::move(placer));
  }
  void on_arrival(py::function here) {
    Places::Placer placer = placer_of(std::move(here));
    py::gil_scoped_release release;
    engine_->on_arrival(std::move(placer));
  }
  static Places::Placer placer_of(py::function here) {
    return [held = held_here(std::move(here))] {
      py::gil_scoped_acquire gil;
      return is_traced() ? int{AsWritten::NOT_NOW} : with_errors_of_torch([&] { return (*held)().cast<int>(); });
    };
  }
  void look_anew(bool first) { engine_->look_anew(first); }
  void charge(int user) { engine_->charge(user); }

  // Whoever profiles or traces Python would see what is not the person's; cProfile loses calls by it.
  static bool is_traced() {
    PyThreadState* thread = PyThreadState_Get();
    if (thread->c_profilefunc || thread->c_tracefunc) return true;
#if PY_VERSION_HEX >= 0x030C0000
    constexpr int TOOLS = 6;
    py::object monitoring = py::module_::import("sys").attr("monitoring");
    for (int id = 0; id < TOOLS; id++)
      if (!monitoring.attr("get_tool")(id).is_none() && monitoring.attr("get_events")(id).cast<int>() != 0) return true;
#endif
    return false;
  }
  py::object kind_wanted() const {
    auto kind = engine_->kind_wanted();
    if (!kind) return py::none();
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(*kind)));
  }
  size_t bytes_wanted(size_t most) const { return engine_->bytes_wanted(most); }
  bool issue_captured() { return engine_->issue_captured(); }
  void captured(uintptr_t executable, uint64_t number) { engine_->captured(reinterpret_cast<void*>(executable), number); }
  void refused(const std::string& why) { engine_->refused(why); }
  std::vector<uint64_t> dropped() { return engine_->captures().dropped->take(); }

  void pass_through(bool passing) { engine_->pass_through(passing); }
  void flush() { engine_->flush(); }
  void in_forked_child() { engine_->in_forked_child(); }
  size_t kernels() const { return registration_.size(); }
  // Another number once something changed how operators compute.
  uint64_t changes() const { return Operator::registrations; }

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
    all["own_ns"] = c.sampled ? c.sampled_ns * 64 : 0;
    all["passing_ns"] = 64 * c.aside_ns + static_cast<uint64_t>(Pace::BOXED_NS) * c.aside;
    all["captured"] = c.captured;
    all["capture_ns"] = c.capture_ns;
    all["lost"] = c.lost;
    all["saved_ns"] = static_cast<int64_t>(c.saved_ns);
    all["waits_ns"] = static_cast<int64_t>(c.waits_ns);
    all["timed"] = c.timed;
    all["record_ns"] = c.record_ns;
    all["rested"] = c.rested;
    all["doubted"] = c.doubted;
    all["backwards"] = engine_->backwards.load();
    all["launched"] = engine_->launcher().graphs;
    all["stale"] = engine_->launcher().stale;
    all["uncaptured"] = engine_->captures().uncaptured;
    all["last_divergence"] = engine_->last_divergence();
    return all;
  }

  py::list fragments() {
    std::vector<Described> found;
    {
      py::gil_scoped_release release;
      found = engine_->described();
    }
    py::list rows;
    for (const Described& one : found) {
      py::dict row;
      row["operators"] = one.operators;
      row["segments"] = one.segments;
      row["graphs"] = one.graphs;
      row["copied"] = one.copied;
      row["entered"] = one.entered;
      row["live"] = one.live;
      row["dead"] = one.dead;
      row["large"] = one.large;
      row["earned_ms"] = one.earned_ms;
      row["price_ms"] = one.price_ms;
      row["saved_ms"] = one.saved_ms;
      row["spent_ms"] = one.spent_ms;
      row["as_written"] = one.as_written;
      rows.append(row);
    }
    return rows;
  }

  // What ran as written since the last look; and what operators took that make plans, where they met sizes for the first
  // time, and where they did not.
  py::tuple as_written() const {
    std::pair<std::vector<AsWritten::Row>, std::vector<FirstVisits::Row>> found;
    {
      py::gil_scoped_release release;  // who holds the engine's lock may need the GIL
      found = engine_->as_written();
    }
    py::list rows, visits;
    for (const AsWritten::Row& row : found.first)
      rows.append(py::make_tuple(row.user, row.op, REASONS[static_cast<size_t>(row.reason)], row.place, row.times, row.ns, row.cuts));
    for (const FirstVisits::Row& row : found.second)
      visits.append(py::make_tuple(row.user, row.name, std::max(row.place, int{AsWritten::NOBODY}), row.first, row.later));
    return py::make_tuple(rows, visits);
  }

  // Of the collectives of this run, the last ones, and how many there were. They are forgotten here.
  py::tuple arrivals() {
    std::pair<std::vector<Arrivals::Row>, uint64_t> found;
    {
      py::gil_scoped_release release;
      found = engine_->arrivals();
    }
    py::list rows;
    for (const Arrivals::Row& row : found.first) rows.append(py::make_tuple(row.op, row.place, row.pass, row.at_ns));
    return py::make_tuple(rows, found.second);
  }

 private:
  static std::unique_ptr<Device> device(int cuda) {
    if (cuda < 0) return std::make_unique<Device>();
    return std::make_unique<Cuda>(static_cast<c10::DeviceIndex>(cuda));
  }

  std::shared_ptr<Engine> engine_;
  Registration registration_;
};

}  // namespace grape

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using grape::Session;
  using grape::Settings;
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Settings>(m, "Settings")
      .def(py::init<>())
      .def_readwrite("longest", &Settings::longest)
      .def_readwrite("shortest", &Settings::shortest)
      .def_readwrite("furthest", &Settings::furthest)
      .def_readwrite("iteration", &Settings::iteration)
      .def_readwrite("settled", &Settings::settled)
      .def_readwrite("hot", &Settings::hot)
      .def_readwrite("patience", &Settings::patience)
      .def_readwrite("budget", &Settings::budget)
      .def_readwrite("strays", &Settings::strays)
      .def_readwrite("issue", &Settings::issue)
      .def_readwrite("draws", &Settings::draws)
      .def_readwrite("graphs", &Settings::graphs)
      .def_readwrite("steady", &Settings::steady)
      .def_readwrite("captures", &Settings::captures)
      .def_readwrite("price", &Settings::price)
      .def_readwrite("unused", &Settings::unused)
      .def_readwrite("doubt", &Settings::doubt);
  py::class_<Session>(m, "Session")
      .def(py::init<const Settings&, int>())
      .def("open", &Session::open)
      .def("pause", &Session::pause)
      .def("resume", &Session::resume)
      .def("close", &Session::close)
      .def("take_back", &Session::take_back)
      .def("join", &Session::join)
      .def("leave", &Session::leave)
      .def("on_capture", &Session::on_capture)
      .def("on_place", &Session::on_place)
      .def("on_arrival", &Session::on_arrival)
      .def("look_anew", &Session::look_anew, without_gil)
      .def("charge", &Session::charge, without_gil)
      .def("as_written", &Session::as_written)
      .def("arrivals", &Session::arrivals)
      .def("kind_wanted", &Session::kind_wanted)
      .def("bytes_wanted", &Session::bytes_wanted)
      .def("issue_captured", &Session::issue_captured, without_gil)
      .def("captured", &Session::captured, without_gil)
      .def("refused", &Session::refused, without_gil)
      .def("dropped", &Session::dropped)
      .def("pass_through", &Session::pass_through, without_gil)
      .def("flush", &Session::flush, without_gil)
      .def("in_forked_child", &Session::in_forked_child)
      .def("kernels", &Session::kernels)
      .def("changes", &Session::changes)
      .def("evidence", &Session::evidence)
      .def("fragments", &Session::fragments);
  grape::define_unchanged(m);
  m.def("own_folder", [](const std::string& folder) { grape::Readers::own_folder = folder; });
  m.def("refusal", &grape::Registration::refusal);
  m.def("loads", &grape::Objects::loads);
  m.def("modules", &grape::Objects::modules);
  m.def("scripts_ran", [] { grape::Scripts::differentiated = true; });
  m.def("in_backward", [] { return torch::autograd::get_current_graph_task_id() != -1; });
  m.def("addresses", &grape::Inputs::addresses);
  m.def("begins", &grape::Inputs::begins);
  m.def("include_key", [](bool on) { c10::impl::tls_set_dispatch_key_included(grape::KEY, on); });
  m.def("key_included", [] { return c10::impl::tls_is_dispatch_key_included(grape::KEY); });
}
