// The operators that cuDNN's recurrent layers are, on the CPU, with what their schemas leave out: the last result is the
// argument `weight_buf`, a forward pass with dropout changes `dropout_state`, and a backward pass changes `reserve`.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

using at::Tensor;
using Optional = std::optional<Tensor>;

namespace {

Tensor or_zeros(const Optional& t, const Tensor& like) { return t && t->defined() ? *t : at::zeros_like(like); }

// input [T, B, I], weights [H, I] and [H, H], hx [1, B, H]: h = tanh(x w' + h u').
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& input, at::TensorList weight, int64_t, const Optional& weight_buf, const Tensor& hx, const Optional&,
    int64_t, int64_t, int64_t, int64_t, bool, double dropout, bool train, bool, at::IntArrayRef, const Optional& dropout_state) {
  Tensor h = hx[0];
  std::vector<Tensor> all;
  for (int64_t t = 0; t < input.size(0); t++) {
    h = at::tanh(at::mm(input[t], weight[0].t()) + at::mm(h, weight[1].t()));
    if (train && dropout > 0) h = h * dropout_state->mul_(0.9).mean();
    all.push_back(h);
  }
  Tensor output = at::stack(all);
  Tensor reserve = train ? output * 0.5 : at::empty({0}, input.options());
  return {output, h.unsqueeze(0).clone(), at::empty({0}, hx.options()), reserve, *weight_buf};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> backward(
    const Tensor& input, at::TensorList weight, int64_t, const Tensor& weight_buf, const Tensor& hx, const Optional&, const Tensor& output,
    const Optional& grad_output, const Optional& grad_hy, const Optional&, int64_t, int64_t, int64_t, int64_t, bool, double, bool,
    bool, at::IntArrayRef, const Optional&, const Tensor& reserve, std::array<bool, 4> mask) {
  Tensor dy = or_zeros(grad_output, output), dh = or_zeros(grad_hy, hx)[0], dx = at::empty_like(input);
  Tensor dw = at::zeros(weight_buf.sizes(), weight_buf.options());
  int64_t n = weight[0].numel();
  Tensor first = dw.narrow(0, 0, n).view(weight[0].sizes()), second = dw.narrow(0, n, weight[1].numel()).view(weight[1].sizes());
  for (int64_t t = input.size(0); t-- > 0;) {
    Tensor y = reserve[t] * 2, before = t ? reserve[t - 1] * 2 : hx[0];
    dh = (dh + dy[t]) * (1 - y * y);
    dx[t].copy_(at::mm(dh, weight[0]));
    first.add_(at::mm(dh.t(), input[t]));
    second.add_(at::mm(dh.t(), before));
    dh = at::mm(dh, weight[1]);
  }
  reserve.mul_(0.25);
  std::vector<Tensor> weights;
  if (mask[3]) weights = {first, second};
  return {dx, dh.unsqueeze(0).clone(), Tensor(), weights};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_cudnn_rnn", TORCH_FN(forward));
  m.impl("_cudnn_rnn_backward", TORCH_FN(backward));
}
