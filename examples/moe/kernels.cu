// The kernels of the model for CUDA, compiled at run time.
//
// One token at a time, and plain: a model of this size is a test, not a load.
// Names, orders and shapes are those of kernels.rs. Every kernel is launched as
// one block of THREADS threads, and no thread needs what another one writes.

#define THREADS 128

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ float silu(float x) { return x * sigmoid(x); }

// Summed in double precision, as on the host.
__device__ float dot(const float* a, const float* b, long long n) {
  double sum = 0.0;
  for (long long i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return (float)sum;
}

__device__ float inverse_rms(const float* x, long long n, float epsilon) {
  return 1.0f / sqrtf(dot(x, x, n) / n + epsilon);
}

// The first float of a position in the pool.
__device__ long long start(const long long* table, long long positions, long long block, long long first,
                           long long position, long long floats) {
  return table[position / positions] * block + first + position % positions * floats;
}

extern "C" __global__ void embed(const long long* token, const float* table, float* out, long long size) {
  for (long long i = threadIdx.x; i < size; i += THREADS) out[i] = table[token[0] * size + i];
}

extern "C" __global__ void rms_norm(const float* x, const float* weight, float* out, long long size,
                                    float offset, float epsilon) {
  float scale = inverse_rms(x, size, epsilon);
  for (long long i = threadIdx.x; i < size; i += THREADS) out[i] = x[i] * scale * (offset + weight[i]);
}

extern "C" __global__ void linear(const float* x, const float* weight, float* out, long long inputs, long long outputs) {
  for (long long i = threadIdx.x; i < outputs; i += THREADS) out[i] = dot(weight + i * inputs, x, inputs);
}

extern "C" __global__ void norm_rope(const float* x, const float* weight, const long long* position, float* out,
                                     long long heads, long long size, long long stride, long long rotary,
                                     float theta, float offset, float epsilon) {
  long long half = rotary / 2;
  for (long long head = threadIdx.x; head < heads; head += THREADS) {
    const float* from = x + head * stride;
    float* to = out + head * size;
    float scale = inverse_rms(from, size, epsilon);
    for (long long i = 0; i < size; i++) to[i] = from[i] * scale * (offset + weight[i]);
    for (long long i = 0; i < half; i++) {
      float angle = (float)position[0] / powf(theta, 2.0f * i / rotary);
      float a = to[i], b = to[i + half];
      to[i] = a * cosf(angle) - b * sinf(angle);
      to[i + half] = b * cosf(angle) + a * sinf(angle);
    }
  }
}

extern "C" __global__ void append(const float* keys, const float* values, const long long* position,
                                  const long long* table, float* pool, long long size, long long positions,
                                  long long block, long long first) {
  float* to = pool + start(table, positions, block, first, position[0], 2 * size);
  for (long long i = threadIdx.x; i < size; i += THREADS) {
    to[i] = keys[i];
    to[size + i] = values[i];
  }
}

extern "C" __global__ void attention(const float* q, const long long* position, const long long* table,
                                     const float* pool, float* out, long long queries, long long keys,
                                     long long size, long long positions, long long block, long long first) {
  long long row = keys * size;
  float scale = 1.0f / sqrtf((float)size);
  for (long long head = threadIdx.x; head < queries; head += THREADS) {
    long long at = head / (queries / keys) * size;
    const float* query = q + head * size;
    float* to = out + head * size;
    float largest = dot(query, pool + start(table, positions, block, first, 0, 2 * row) + at, size) * scale;
    for (long long p = 1; p <= position[0]; p++) {
      float score = dot(query, pool + start(table, positions, block, first, p, 2 * row) + at, size) * scale;
      largest = fmaxf(largest, score);
    }
    float total = 0.0f;
    for (long long i = 0; i < size; i++) to[i] = 0.0f;
    for (long long p = 0; p <= position[0]; p++) {
      const float* key = pool + start(table, positions, block, first, p, 2 * row) + at;
      float weight = expf(dot(query, key, size) * scale - largest);
      total += weight;
      for (long long i = 0; i < size; i++) to[i] += weight * key[row + i];
    }
    for (long long i = 0; i < size; i++) to[i] /= total;
  }
}

extern "C" __global__ void gate(const float* x, const float* gates, float* out, long long length,
                                long long first, long long stride, long long size) {
  for (long long i = threadIdx.x; i < length; i += THREADS)
    out[i] = x[i] * sigmoid(gates[i / size * stride + first + i % size]);
}

extern "C" __global__ void add(const float* a, const float* b, float* out, long long length) {
  for (long long i = threadIdx.x; i < length; i += THREADS) out[i] = a[i] + b[i];
}

extern "C" __global__ void route(const float* logits, long long* experts, float* shares, long long count, long long chosen) {
  if (threadIdx.x != 0) return;
  float largest = logits[0], total = 0.0f, kept = 0.0f;
  for (long long i = 1; i < count; i++) largest = fmaxf(largest, logits[i]);
  for (long long i = 0; i < count; i++) total += expf(logits[i] - largest);
  for (long long n = 0; n < chosen; n++) {
    long long best = -1;
    for (long long i = 0; i < count; i++) {
      bool taken = false;
      for (long long m = 0; m < n; m++) taken = taken || experts[m] == i;
      if (!taken && (best < 0 || logits[i] > logits[best])) best = i;
    }
    experts[n] = best;
    shares[n] = expf(logits[best] - largest) / total;
    kept += shares[n];
  }
  for (long long n = 0; n < chosen; n++) shares[n] /= kept;
}

extern "C" __global__ void experts_up(const float* x, const long long* experts, const float* weight, float* out,
                                      long long inputs, long long size, long long chosen) {
  for (long long i = threadIdx.x; i < chosen * size; i += THREADS) {
    const float* rows = weight + experts[i / size] * 2 * size * inputs;
    long long row = i % size;
    out[i] = silu(dot(rows + row * inputs, x, inputs)) * dot(rows + (size + row) * inputs, x, inputs);
  }
}

extern "C" __global__ void experts_down(const float* hidden, const long long* experts, const float* shares,
                                        const float* weight, float* out, long long outputs, long long size,
                                        long long chosen) {
  for (long long i = threadIdx.x; i < outputs; i += THREADS) {
    float sum = 0.0f;
    for (long long n = 0; n < chosen; n++)
      sum += shares[n] * dot(weight + (experts[n] * outputs + i) * size, hidden + n * size, size);
    out[i] = sum;
  }
}

extern "C" __global__ void gated_up(const float* x, const float* gates, const float* ups, float* out,
                                    long long inputs, long long size) {
  for (long long i = threadIdx.x; i < size; i += THREADS)
    out[i] = silu(dot(gates + i * inputs, x, inputs)) * dot(ups + i * inputs, x, inputs);
}

extern "C" __global__ void add_shared(const float* routed, const float* shared, const float* x, const float* gate,
                                      float* out, long long size) {
  float share = sigmoid(dot(gate, x, size));
  for (long long i = threadIdx.x; i < size; i += THREADS) out[i] = routed[i] + share * shared[i];
}

extern "C" __global__ void convolve(const float* x, const float* weight, float* out, float* state,
                                    long long channels, long long width) {
  for (long long i = threadIdx.x; i < channels; i += THREADS) {
    float* past = state + i * (width - 1);
    const float* filter = weight + i * width;
    out[i] = silu(dot(filter, past, width - 1) + filter[width - 1] * x[i]);
    for (long long j = 1; j < width - 1; j++) past[j - 1] = past[j];
    past[width - 2] = x[i];
  }
}

// One thread computes one column of the state of one head.
extern "C" __global__ void delta(const float* qkv, const float* a, const float* b, const float* a_log,
                                 const float* dt_bias, float* out, float* state, long long keys, long long values,
                                 long long key_size, long long value_size) {
  for (long long i = threadIdx.x; i < values * value_size; i += THREADS) {
    long long head = i / value_size, column = i % value_size;
    long long shared = head / (values / keys) * key_size;
    const float* q = qkv + shared;
    const float* k = qkv + keys * key_size + shared;
    float v = qkv[2 * keys * key_size + i];
    float q_scale = 1.0f / sqrtf(dot(q, q, key_size) + 1e-6f) / sqrtf((float)key_size);
    float k_scale = 1.0f / sqrtf(dot(k, k, key_size) + 1e-6f);
    float step = a[head] + dt_bias[head];
    float decay = expf(-expf(a_log[head]) * (step > 20.0f ? step : log1pf(expf(step))));
    float* cell = state + head * key_size * value_size + column;

    double remembered = 0.0;
    for (long long j = 0; j < key_size; j++) {
      cell[j * value_size] *= decay;
      remembered += (double)cell[j * value_size] * (double)(k[j] * k_scale);
    }
    float change = (float)((double)v - remembered) * sigmoid(b[head]);
    double sum = 0.0;
    for (long long j = 0; j < key_size; j++) {
      cell[j * value_size] += k[j] * k_scale * change;
      sum += (double)cell[j * value_size] * (double)(q[j] * q_scale);
    }
    out[i] = (float)sum;
  }
}

extern "C" __global__ void gated_norm(const float* x, const float* gates, const float* weight, float* out,
                                      long long length, long long size, float epsilon) {
  for (long long i = threadIdx.x; i < length; i += THREADS) {
    float scale = inverse_rms(x + i / size * size, size, epsilon);
    out[i] = x[i] * scale * weight[i % size] * silu(gates[i]);
  }
}

extern "C" __global__ void choose(const float* logits, long long* token, long long* position, long long count) {
  if (threadIdx.x != 0) return;
  long long best = 0;
  for (long long i = 1; i < count; i++)
    if (logits[i] > logits[best]) best = i;
  token[0] = best;
  position[0] += 1;
}
