// Random fills, copies and stream operations, compared with a model of the memory in host memory.
//   memory SEED COUNT [OPERATIONS PER COMPARISON]
#include "check.h"
#include <cstring>
#include <string>
#include <vector>

constexpr size_t SIZE = 3 << 20;
constexpr int BUFFERS = 5;
constexpr size_t SYMBOL_SIZE = 4099;
constexpr size_t VALUES = 64;

__device__ unsigned char symbol[SYMBOL_SIZE] = {1, 2, 3};
__constant__ unsigned char constant[64] = {9, 8, 7};

// Memory of the program's host, of the device and of the host for the device, and what each must contain.
struct Buffer {
    unsigned char *memory;
    std::vector<unsigned char> model;
    bool is_host;
    int device;
};

static std::vector<Buffer> buffers;
static std::vector<hipStream_t> streams;
static std::vector<unsigned char *> arena;
static std::vector<unsigned char *> pinned_arena;
static Random *dice;
static int last_stream, devices;
static const char *last_operation = "none";

static size_t random_size(size_t limit) {
    switch (dice->below(6)) {
    case 0: return 1 + dice->below(limit < 17 ? limit : 17);
    case 1: return 1 + dice->below(limit < 600 ? limit : 600);
    case 2: return 1 + dice->below(limit < 70000 ? limit : 70000);
    case 3: return limit < 16 ? limit : (1 + dice->below(limit / 16)) * 16;
    case 4: return limit < 4 ? limit : (1 + dice->below(limit / 4)) * 4;
    default: return 1 + dice->below(limit);
    }
}

static size_t random_offset(size_t limit, size_t size, size_t unit = 1) {
    size_t offset = dice->below(limit - size + 1);
    if (dice->below(2)) offset &= ~size_t{255};
    return offset / unit * unit;
}

// Each operation is ordered after the previous one, also on another stream.
static hipStream_t next_stream() {
    int next = static_cast<int>(dice->below(streams.size()));
    if (next != last_stream) {
        hipEvent_t event;
        CHECK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
        CHECK(hipEventRecord(event, streams[last_stream]));
        CHECK(hipStreamWaitEvent(streams[next], event, 0));
        CHECK(hipEventDestroy(event));
        last_stream = next;
    }
    return streams[next];
}

static void synchronize_all() {
    CHECK(hipDeviceSynchronize());
    for (auto *memory : arena) std::free(memory);
    for (auto *memory : pinned_arena) CHECK(hipHostFree(memory));
    arena.clear();
    pinned_arena.clear();
}

static unsigned char *random_host(size_t size) {
    unsigned char *memory;
    if (dice->below(4) == 0) {
        CHECK(hipHostMalloc(reinterpret_cast<void **>(&memory), size, 0));
        pinned_arena.push_back(memory);
    } else {
        memory = static_cast<unsigned char *>(std::malloc(size));
        arena.push_back(memory);
    }
    for (size_t n = 0; n < size; n++) memory[n] = static_cast<unsigned char>(dice->state >> (n % 7 * 8)) ^ static_cast<unsigned char>(n * 31);
    dice->next();
    return memory;
}

static Buffer &any() { return buffers[dice->below(buffers.size())]; }

static Buffer &on_device() {
    for (;;)
        if (Buffer &buffer = any(); !buffer.is_host) return buffer;
}

static void fill_1d(hipStream_t stream, bool is_async) {
    Buffer &to = on_device();
    size_t unit = size_t{1} << dice->below(3), size = random_size(SIZE / 2) * unit;
    if (size > SIZE) size = SIZE / unit * unit;
    size_t at = random_offset(SIZE, size, unit);
    uint32_t value = static_cast<uint32_t>(dice->next());
    auto *start = reinterpret_cast<hipDeviceptr_t>(to.memory + at);
    last_operation = unit == 1 ? "memset" : unit == 2 ? "memset of 16 bits" : "memset of 32 bits";
    if (unit == 1 && dice->below(2)) {
        CHECK(is_async ? hipMemsetAsync(to.memory + at, value & 255, size, stream) : hipMemset(to.memory + at, value & 255, size));
    } else if (unit == 1) {
        CHECK(is_async ? hipMemsetD8Async(start, value & 255, size, stream) : hipMemsetD8(start, value & 255, size));
    } else if (unit == 2) {
        CHECK(is_async ? hipMemsetD16Async(start, value & 0xffff, size / 2, stream) : hipMemsetD16(start, value & 0xffff, size / 2));
    } else {
        CHECK(is_async ? hipMemsetD32Async(start, static_cast<int>(value), size / 4, stream) : hipMemsetD32(start, static_cast<int>(value), size / 4));
    }
    for (size_t n = 0; n < size; n++) to.model[at + n] = reinterpret_cast<unsigned char *>(&value)[n % unit];
}

static void fill_rect(hipStream_t stream, bool is_async) {
    Buffer &to = on_device();
    size_t width = random_size(900), pitch = width + dice->below(100), height = 1 + dice->below(40), depth = dice->below(2) ? 1 : 1 + dice->below(6);
    // With rows without padding, AMD's runtimes fill one piece of memory and ignore the height of the allocation.
    size_t rows = height + (depth > 1 && pitch > width ? dice->below(3) : 0);
    size_t at = random_offset(SIZE, pitch * rows * depth);
    unsigned char value = static_cast<unsigned char>(dice->next());
    last_operation = depth > 1 ? "3D memset" : "2D memset";
    if (depth > 1) {
        hipPitchedPtr pitched = make_hipPitchedPtr(to.memory + at, pitch, width, rows);
        hipExtent extent = make_hipExtent(width, height, depth);
        CHECK(is_async ? hipMemset3DAsync(pitched, value, extent, stream) : hipMemset3D(pitched, value, extent));
    } else {
        CHECK(is_async ? hipMemset2DAsync(to.memory + at, pitch, value, width, height, stream) : hipMemset2D(to.memory + at, pitch, value, width, height));
    }
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++) std::memset(&to.model[at + (z * rows + y) * pitch], value, width);
}

static hipMemcpyKind kind_of(bool from_host, bool to_host) {
    if (dice->below(2)) return hipMemcpyDefault;
    if (from_host) return to_host ? hipMemcpyHostToHost : hipMemcpyHostToDevice;
    return to_host ? hipMemcpyDeviceToHost : hipMemcpyDeviceToDevice;
}

static void copy_1d(hipStream_t stream, bool is_async) {
    Buffer &to = any(), &from = any();
    size_t size = random_size(&to == &from ? SIZE / 2 : SIZE);
    size_t source = random_offset(SIZE, size), at = random_offset(SIZE, size);
    // The two may not overlap.
    if (&to == &from) source = random_offset(SIZE / 2, size), at = SIZE / 2 + random_offset(SIZE / 2, size);
    hipMemcpyKind kind = kind_of(from.is_host, to.is_host);
    last_operation = "copy";
    if (to.device != from.device && !to.is_host && !from.is_host && dice->below(2)) {
        CHECK(is_async ? hipMemcpyPeerAsync(to.memory + at, to.device, from.memory + source, from.device, size, stream)
                       : hipMemcpyPeer(to.memory + at, to.device, from.memory + source, from.device, size));
    } else if (is_async) {
        CHECK(hipMemcpyAsync(to.memory + at, from.memory + source, size, kind, stream));
    } else {
        CHECK(dice->below(2) ? hipMemcpy(to.memory + at, from.memory + source, size, kind) : hipMemcpyWithStream(to.memory + at, from.memory + source, size, kind, stream));
    }
    std::memcpy(&to.model[at], &from.model[source], size);
}

// From memory that is not known to the runtime, which it stages or pins.
static void upload(hipStream_t stream, bool is_async) {
    Buffer &to = any();
    size_t size = random_size(SIZE), at = random_offset(SIZE, size);
    unsigned char *from = random_host(size);
    last_operation = "upload";
    hipMemcpyKind kind = to.is_host ? hipMemcpyDefault : kind_of(true, false);
    CHECK(is_async ? hipMemcpyAsync(to.memory + at, from, size, kind, stream) : hipMemcpy(to.memory + at, from, size, kind));
    std::memcpy(&to.model[at], from, size);
}

static void download(hipStream_t stream, bool is_async) {
    Buffer &from = any();
    size_t size = random_size(SIZE), at = random_offset(SIZE, size);
    unsigned char *to = random_host(size);
    last_operation = "download";
    hipMemcpyKind kind = from.is_host ? hipMemcpyDefault : kind_of(false, true);
    CHECK(is_async ? hipMemcpyAsync(to, from.memory + at, size, kind, stream) : hipMemcpy(to, from.memory + at, size, kind));
    CHECK(hipStreamSynchronize(stream));
    if (std::memcmp(to, &from.model[at], size) != 0) {
        std::printf("wrong data in a download of %zu bytes\n", size);
        std::exit(1);
    }
}

static void copy_2d(hipStream_t stream, bool is_async) {
    Buffer &to = any(), &from = any();
    if (&to == &from) return;
    size_t width = random_size(1200), height = 1 + dice->below(60);
    size_t pitches[] = {width + dice->below(70), width + dice->below(70)};
    size_t unit = dice->below(3) == 0 ? (dice->below(2) ? 16 : 4) : 1;
    if (unit > 1) width = (width + unit - 1) / unit * unit, pitches[0] = width + unit * dice->below(4), pitches[1] = width + unit * dice->below(4);
    size_t source = random_offset(SIZE, pitches[0] * height, unit), at = random_offset(SIZE, pitches[1] * height, unit);
    hipMemcpyKind kind = kind_of(from.is_host, to.is_host);
    last_operation = "2D copy";
    CHECK(is_async ? hipMemcpy2DAsync(to.memory + at, pitches[1], from.memory + source, pitches[0], width, height, kind, stream)
                   : hipMemcpy2D(to.memory + at, pitches[1], from.memory + source, pitches[0], width, height, kind));
    for (size_t y = 0; y < height; y++) std::memcpy(&to.model[at + y * pitches[1]], &from.model[source + y * pitches[0]], width);
}

static void copy_3d(hipStream_t stream, bool is_async) {
    Buffer &to = any(), &from = any();
    if (&to == &from) return;
    size_t width = random_size(300), height = 1 + dice->below(12), depth = 1 + dice->below(8);
    size_t pitch[2], rows[2], slices[2], x[2], y[2], z[2], start[2];
    for (int n = 0; n < 2; n++) {
        x[n] = dice->below(9), y[n] = dice->below(3), z[n] = dice->below(2);
        pitch[n] = width + x[n] + dice->below(40), rows[n] = height + y[n] + dice->below(4), slices[n] = depth + z[n];
        start[n] = random_offset(SIZE, pitch[n] * rows[n] * slices[n]);
    }
    hipMemcpy3DParms copy = {};
    copy.srcPtr = make_hipPitchedPtr(from.memory + start[0], pitch[0], pitch[0], rows[0]);
    copy.dstPtr = make_hipPitchedPtr(to.memory + start[1], pitch[1], pitch[1], rows[1]);
    copy.srcPos = make_hipPos(x[0], y[0], z[0]);
    copy.dstPos = make_hipPos(x[1], y[1], z[1]);
    copy.extent = make_hipExtent(width, height, depth);
    copy.kind = kind_of(from.is_host, to.is_host);
    last_operation = "3D copy";
    CHECK(is_async ? hipMemcpy3DAsync(&copy, stream) : hipMemcpy3D(&copy));
    for (size_t slice = 0; slice < depth; slice++)
        for (size_t row = 0; row < height; row++) {
            auto place = [&](int n) { return start[n] + ((slice + z[n]) * rows[n] + row + y[n]) * pitch[n] + x[n]; };
            std::memcpy(&to.model[place(1)], &from.model[place(0)], width);
        }
}

static std::vector<unsigned char> symbol_model, constant_model;

static void copy_symbol(hipStream_t stream, bool is_async) {
    bool is_constant = dice->below(4) == 0;
    auto &model = is_constant ? constant_model : symbol_model;
    const void *name = is_constant ? HIP_SYMBOL(constant) : HIP_SYMBOL(symbol);
    size_t size = random_size(model.size()), at = dice->below(model.size() - size + 1);
    Buffer &other = any();
    size_t place = random_offset(SIZE, size);
    hipMemcpyKind kind = other.is_host ? hipMemcpyHostToDevice : hipMemcpyDeviceToDevice;
    if (dice->below(2)) {
        last_operation = "copy to a symbol";
        CHECK(is_async ? hipMemcpyToSymbolAsync(name, other.memory + place, size, at, kind, stream) : hipMemcpyToSymbol(name, other.memory + place, size, at, kind));
        std::memcpy(&model[at], &other.model[place], size);
    } else {
        last_operation = "copy from a symbol";
        kind = other.is_host ? hipMemcpyDeviceToHost : hipMemcpyDeviceToDevice;
        CHECK(is_async ? hipMemcpyFromSymbolAsync(other.memory + place, name, size, at, kind, stream) : hipMemcpyFromSymbol(other.memory + place, name, size, at, kind));
        std::memcpy(&other.model[place], &model[at], size);
    }
}

// HIP 7.2 of Debian rejects every operation with `hipErrorInvalidValue`; 6.4 carries them out.
static bool batch_is_supported() {
    hipStreamBatchMemOpParams operation = {};
    operation.operation = hipStreamMemOpWriteValue32;
    operation.writeValue.address = reinterpret_cast<hipDeviceptr_t>(buffers[0].memory);
    bool is_supported = hipStreamBatchMemOp(streams[1], 1, &operation, 0) == hipSuccess;
    CHECK(hipStreamSynchronize(streams[1]));
    (void)hipGetLastError();
    return is_supported;
}

static bool uses_batches;

static void write_value(hipStream_t stream, unsigned char *to, uint64_t value, bool is_wide) {
    if (dice->below(4) == 0 && uses_batches) {
        hipStreamBatchMemOpParams operation = {};
        operation.operation = is_wide ? hipStreamMemOpWriteValue64 : hipStreamMemOpWriteValue32;
        operation.writeValue.address = reinterpret_cast<hipDeviceptr_t>(to);
        if (is_wide) operation.writeValue.value64 = value;
        else operation.writeValue.value = static_cast<uint32_t>(value);
        CHECK(hipStreamBatchMemOp(stream, 1, &operation, 0));
    } else if (is_wide) {
        CHECK(hipStreamWriteValue64(stream, to, value, 0));
    } else {
        CHECK(hipStreamWriteValue32(stream, to, static_cast<uint32_t>(value), 0));
    }
}

static void stream_value(hipStream_t stream) {
    Buffer &to = on_device();
    bool is_wide = dice->below(2);
    size_t at = dice->below(SIZE / 8) * 8;
    uint64_t value = dice->next() * 8 + 6;
    last_operation = "stream value";
    // Conditions that the value satisfies, and the word before does not.
    unsigned flag = static_cast<unsigned>(dice->below(4));
    uint64_t mask = ~uint64_t{0}, expected = value, before = 0;
    if (flag == hipStreamWaitValueEq && dice->below(2)) mask = 0xff, expected = value & mask;
    if (flag == hipStreamWaitValueAnd) expected = 4;
    if (flag == hipStreamWaitValueNor) mask = 0xff, expected = 0xf8, before = ~uint64_t{0};
    // Either the value is there, or a second stream writes it behind the wait.
    hipStream_t writer = streams[1 + dice->below(streams.size() - 1)];
    bool is_waiting = writer != stream && dice->below(2) && to.device == 0;
    write_value(stream, to.memory + at, is_waiting ? before : value, is_wide);
    if (is_waiting) {
        hipEvent_t event;
        CHECK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
        CHECK(hipEventRecord(event, stream));
        CHECK(hipStreamWaitEvent(writer, event, 0));
        CHECK(hipEventDestroy(event));
    }
    if (is_wide) CHECK(hipStreamWaitValue64(stream, to.memory + at, expected, flag, mask));
    else CHECK(hipStreamWaitValue32(stream, to.memory + at, static_cast<uint32_t>(expected), flag, static_cast<uint32_t>(mask)));
    if (is_waiting) write_value(writer, to.memory + at, value, is_wide);
    std::memcpy(&to.model[at], &value, is_wide ? 8 : 4);
}

static void compare(const char *when) {
    synchronize_all();
    std::vector<unsigned char> contents(SIZE);
    for (size_t n = 0; n < buffers.size(); n++) {
        if (buffers[n].is_host) std::memcpy(contents.data(), buffers[n].memory, SIZE);
        else CHECK(hipMemcpy(contents.data(), buffers[n].memory, SIZE, hipMemcpyDeviceToHost));
        for (size_t at = 0; at < SIZE; at++)
            if (contents[at] != buffers[n].model[at]) {
                std::printf("wrong byte %zu of buffer %zu (%s) %s, after a %s: %#x instead of %#x\n", at, n,
                            buffers[n].is_host ? "host" : "device", when, last_operation, contents[at], buffers[n].model[at]);
                std::exit(1);
            }
    }
    std::vector<unsigned char> object(SYMBOL_SIZE);
    CHECK(hipMemcpyFromSymbol(object.data(), HIP_SYMBOL(symbol), SYMBOL_SIZE, 0, hipMemcpyDeviceToHost));
    if (object != symbol_model) std::printf("wrong symbol %s, after a %s\n", when, last_operation), std::exit(1);
    object.resize(64);
    CHECK(hipMemcpyFromSymbol(object.data(), HIP_SYMBOL(constant), 64, 0, hipMemcpyDeviceToHost));
    if (object != constant_model) std::printf("wrong constant %s, after a %s\n", when, last_operation), std::exit(1);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 1, count = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1000;
    uint64_t interval = argc > 3 ? std::strtoull(argv[3], nullptr, 0) : 25;
    Random random(seed);
    dice = &random;
    symbol_model.assign(SYMBOL_SIZE, 0), symbol_model[0] = 1, symbol_model[1] = 2, symbol_model[2] = 3;
    constant_model.assign(64, 0), constant_model[0] = 9, constant_model[1] = 8, constant_model[2] = 7;
    CHECK(hipGetDeviceCount(&devices));
    for (int n = 0; n < BUFFERS; n++) {
        Buffer buffer = {nullptr, std::vector<unsigned char>(SIZE, 0), n == 3, n == 4 && devices > 1 ? 1 : 0};
        if (buffer.is_host) {
            CHECK(hipHostMalloc(reinterpret_cast<void **>(&buffer.memory), SIZE, 0));
            std::memset(buffer.memory, 0, SIZE);
        } else {
            CHECK(hipSetDevice(buffer.device));
            CHECK(hipMalloc(reinterpret_cast<void **>(&buffer.memory), SIZE));
            CHECK(hipMemset(buffer.memory, 0, SIZE));
            CHECK(hipDeviceSynchronize());
            CHECK(hipSetDevice(0));
        }
        buffers.push_back(std::move(buffer));
    }
    streams.push_back(nullptr);
    for (int n = 0; n < 3; n++) {
        hipStream_t stream;
        CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
        streams.push_back(stream);
    }
    uses_batches = batch_is_supported();
    compare("at the start");
    uint64_t kinds[9] = {};
    for (uint64_t n = 0; n < count; n++) {
        hipStream_t stream = next_stream();
        // Synchronous operations use the null stream, which does not wait for the other ones.
        bool is_async = dice->below(3) != 0;
        if (!is_async && stream != nullptr) CHECK(hipStreamSynchronize(stream));
        uint64_t kind = dice->below(9);
        kinds[kind]++;
        switch (kind) {
        case 0: fill_1d(stream, is_async); break;
        case 1: fill_rect(stream, is_async); break;
        case 2: copy_1d(stream, is_async); break;
        case 3: upload(stream, is_async); break;
        case 4: download(stream, is_async); break;
        case 5: copy_2d(stream, is_async); break;
        case 6: copy_3d(stream, is_async); break;
        case 7: copy_symbol(stream, is_async); break;
        default: stream_value(stream); break;
        }
        // A synchronous memset may return before it has completed.
        if (!is_async) CHECK(hipStreamSynchronize(nullptr));
        if (n % interval == interval - 1) compare("during the run");
    }
    compare("at the end");
    std::printf("%llu operations on %d devices, %s batches:", static_cast<unsigned long long>(count), devices, uses_batches ? "with" : "without");
    for (uint64_t kind : kinds) std::printf(" %llu", static_cast<unsigned long long>(kind));
    std::printf("\n");
    for (auto &buffer : buffers) CHECK(buffer.is_host ? hipHostFree(buffer.memory) : hipFree(buffer.memory));
    for (auto stream : streams)
        if (stream != nullptr) CHECK(hipStreamDestroy(stream));
    return 0;
}
