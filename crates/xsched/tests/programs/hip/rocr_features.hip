// One feature of the HIP runtime for each first argument. Prints what it found; exits with 70 on the first error.
#include <hip/hip_ext.h>
#include <hip/hip_runtime.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

__global__ void spin(unsigned long nanoseconds) { asm volatile("" ::"s"(nanoseconds)); }
__global__ void increment(unsigned long *counter) { atomicAdd((unsigned long long *)counter, 1ull); }
__device__ int table[4] = {11, 22, 33, 44};

static void must(hipError_t error, const char *what) {
    if (error != hipSuccess) {
        printf("%s: %s\n", what, hipGetErrorString(error));
        exit(70);
    }
}
#define MUST(call) must(call, #call)

template <typename T>
static T *device_memory(size_t count) {
    void *memory;
    MUST(hipMalloc(&memory, count * sizeof(T)));
    return (T *)memory;
}

// Streams of every priority and with a mask of compute units run kernels.
static void streams() {
    int least, greatest;
    MUST(hipDeviceGetStreamPriorityRange(&least, &greatest));
    printf("priorities %d to %d\n", least, greatest);
    std::vector<hipStream_t> streams;
    for (int priority = greatest; priority <= least; priority++) {
        hipStream_t stream;
        MUST(hipStreamCreateWithPriority(&stream, hipStreamNonBlocking, priority));
        streams.push_back(stream);
    }
    hipStream_t masked;
    uint32_t mask[] = {0x0000ffff, 0}, got[4] = {0};
    MUST(hipExtStreamCreateWithCUMask(&masked, 2, mask));
    MUST(hipExtStreamGetCUMask(masked, 4, got));
    printf("mask %x %x\n", got[0], got[1]);
    streams.push_back(masked);
    unsigned long *counter = device_memory<unsigned long>(1), value = 0;
    MUST(hipMemset(counter, 0, sizeof *counter));
    // A fill on the null stream is not ordered before kernels on non-blocking streams.
    MUST(hipDeviceSynchronize());
    for (int round = 0; round < 50; round++)
        for (hipStream_t stream : streams) increment<<<1, 1, 0, stream>>>(counter);
    for (hipStream_t stream : streams) MUST(hipStreamSynchronize(stream));
    MUST(hipMemcpy(&value, counter, sizeof value, hipMemcpyDeviceToHost));
    printf("%lu kernels\n", value);
    for (hipStream_t stream : streams) MUST(hipStreamDestroy(stream));
}

// Events order streams and measure time.
static void events() {
    hipStream_t first, second;
    MUST(hipStreamCreateWithFlags(&first, hipStreamNonBlocking));
    MUST(hipStreamCreateWithFlags(&second, hipStreamNonBlocking));
    hipEvent_t begin, middle, end;
    for (hipEvent_t *event : {&begin, &middle, &end}) MUST(hipEventCreate(event));
    spin<<<1, 1, 0, first>>>(100000ul);
    MUST(hipEventRecord(begin, first));
    spin<<<1, 1, 0, first>>>(5000000ul);
    MUST(hipEventRecord(middle, first));
    MUST(hipStreamWaitEvent(second, middle, 0));
    spin<<<1, 1, 0, second>>>(1000000ul);
    MUST(hipEventRecord(end, second));
    printf("pending %d\n", hipEventQuery(end) == hipErrorNotReady);
    MUST(hipEventSynchronize(end));
    float to_middle, to_end;
    MUST(hipEventElapsedTime(&to_middle, begin, middle));
    MUST(hipEventElapsedTime(&to_end, begin, end));
    printf("5 ms %d, then 1 ms %d\n", to_middle >= 5, to_end - to_middle >= 1);
}

// A captured graph is replayed.
static void graphs() {
    hipStream_t stream, other;
    MUST(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    MUST(hipStreamCreateWithFlags(&other, hipStreamNonBlocking));
    unsigned long *counter = device_memory<unsigned long>(2), values[2] = {0};
    MUST(hipMemset(counter, 0, 2 * sizeof *counter));
    MUST(hipDeviceSynchronize());
    hipEvent_t fork, join;
    MUST(hipEventCreateWithFlags(&fork, hipEventDisableTiming));
    MUST(hipEventCreateWithFlags(&join, hipEventDisableTiming));
    MUST(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    increment<<<1, 1, 0, stream>>>(counter);
    MUST(hipEventRecord(fork, stream));
    MUST(hipStreamWaitEvent(other, fork, 0));
    increment<<<1, 1, 0, other>>>(counter + 1);
    MUST(hipEventRecord(join, other));
    increment<<<1, 1, 0, stream>>>(counter);
    MUST(hipStreamWaitEvent(stream, join, 0));
    increment<<<1, 1, 0, stream>>>(counter + 1);
    hipGraph_t graph;
    MUST(hipStreamEndCapture(stream, &graph));
    hipGraphExec_t executable;
    MUST(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
    for (int round = 0; round < 20; round++) MUST(hipGraphLaunch(executable, stream));
    MUST(hipStreamSynchronize(stream));
    MUST(hipMemcpy(values, counter, sizeof values, hipMemcpyDeviceToHost));
    printf("%lu and %lu kernels\n", values[0], values[1]);
    MUST(hipGraphExecDestroy(executable));
    MUST(hipGraphDestroy(graph));
}

// Host functions run in stream order.
static void host_functions() {
    static std::atomic<int> calls{0}, early{0};
    static unsigned long *counter;
    MUST(hipHostMalloc((void **)&counter, sizeof *counter, 0));
    *counter = 0;
    hipStream_t stream;
    MUST(hipStreamCreate(&stream));
    for (int round = 0; round < 10; round++) {
        spin<<<1, 1, 0, stream>>>(100000ul);
        increment<<<1, 1, 0, stream>>>(counter);
        MUST(hipLaunchHostFunc(stream, [](void *) {
            if (*counter != (unsigned long)++calls) early++;
        }, nullptr));
        MUST(hipStreamAddCallback(stream, [](hipStream_t, hipError_t status, void *) { early += status != hipSuccess; }, nullptr, 0));
    }
    MUST(hipStreamSynchronize(stream));
    printf("%d calls, %d early\n", calls.load(), early.load());
}

// Copies of every kind have the right data.
static void copies() {
    const size_t size = (3 << 20) + 13;
    std::vector<unsigned char> from(size), to(size);
    for (size_t n = 0; n < size; n++) from[n] = (unsigned char)(n * 31 + n / 251);
    unsigned char *a = device_memory<unsigned char>(size), *b = device_memory<unsigned char>(size);
    int wrong = 0;
    auto check = [&](const char *what) {
        if (memcmp(from.data(), to.data(), size) != 0) {
            printf("%s: wrong data\n", what);
            wrong++;
        }
        memset(to.data(), 0, size);
    };
    MUST(hipMemcpy(a, from.data(), size, hipMemcpyHostToDevice));
    MUST(hipMemcpy(b, a, size, hipMemcpyDeviceToDevice));
    MUST(hipMemcpy(to.data(), b, size, hipMemcpyDeviceToHost));
    check("pageable");
    unsigned char *pinned, *pinned_too;
    MUST(hipHostMalloc((void **)&pinned, size, 0));
    MUST(hipHostMalloc((void **)&pinned_too, size, 0));
    memcpy(pinned, from.data(), size);
    hipStream_t stream;
    MUST(hipStreamCreate(&stream));
    MUST(hipMemsetAsync(b, 0, size, stream));
    MUST(hipMemcpyAsync(a, pinned, size, hipMemcpyHostToDevice, stream));
    MUST(hipMemcpyAsync(b, a, size, hipMemcpyDeviceToDevice, stream));
    MUST(hipMemcpyAsync(pinned_too, b, size, hipMemcpyDeviceToHost, stream));
    MUST(hipStreamSynchronize(stream));
    memcpy(to.data(), pinned_too, size);
    check("pinned");
    MUST(hipMemcpy(to.data(), from.data(), size, hipMemcpyHostToHost));
    check("host");
    MUST(hipMemset(a, 0, size));
    MUST(hipHostRegister(from.data(), size, 0));
    MUST(hipMemcpyAsync(a, from.data(), size, hipMemcpyHostToDevice, stream));
    MUST(hipStreamSynchronize(stream));
    MUST(hipHostUnregister(from.data()));
    MUST(hipMemcpy(to.data(), a, size, hipMemcpyDefault));
    check("registered");
    // 100 rows of 1000 bytes in rows of 1024 and 2048 bytes.
    MUST(hipMemset(b, 0, 100 * 2048));
    MUST(hipMemcpy2D(b, 2048, from.data(), 1024, 1000, 100, hipMemcpyHostToDevice));
    MUST(hipMemcpy2D(to.data(), 1000, b, 2048, 1000, 100, hipMemcpyDeviceToHost));
    for (int row = 0; row < 100; row++) wrong += memcmp(&to[row * 1000], &from[row * 1024], 1000) != 0;
    int values[4] = {0}, new_values[4] = {5, 6, 7, 8};
    MUST(hipMemcpyFromSymbol(values, HIP_SYMBOL(table), sizeof values, 0, hipMemcpyDeviceToHost));
    printf("variable %d %d %d %d\n", values[0], values[1], values[2], values[3]);
    MUST(hipMemcpyToSymbol(HIP_SYMBOL(table), new_values, sizeof new_values, 0, hipMemcpyHostToDevice));
    MUST(hipMemcpyFromSymbol(values, HIP_SYMBOL(table), sizeof values, 0, hipMemcpyDeviceToHost));
    printf("variable %d %d %d %d\n", values[0], values[1], values[2], values[3]);
    uint32_t words[3] = {0};
    MUST(hipMemsetD32((hipDeviceptr_t)a, 0x12345678, 3));
    MUST(hipMemcpy(words, a, sizeof words, hipMemcpyDeviceToHost));
    printf("words %x %x\n", words[0], words[2]);
    printf("%d wrong\n", wrong);
}

// Memory of the other kinds: managed, from a stream's pool, with a pitch, and in the nodes of a graph.
static void memory_kinds() {
    unsigned long *managed;
    MUST(hipMallocManaged((void **)&managed, 4096));
    *managed = 5;
    increment<<<1, 1>>>(managed);
    MUST(hipDeviceSynchronize());
    printf("managed %lu\n", *managed);
    hipStream_t stream;
    MUST(hipStreamCreate(&stream));
    void *pooled;
    unsigned char byte = 0;
    MUST(hipMallocAsync(&pooled, 1 << 20, stream));
    MUST(hipMemsetAsync(pooled, 0x33, 1 << 20, stream));
    MUST(hipMemcpyAsync(&byte, pooled, 1, hipMemcpyDeviceToHost, stream));
    MUST(hipFreeAsync(pooled, stream));
    MUST(hipStreamSynchronize(stream));
    printf("pool %x\n", byte);
    hipExtent extent = make_hipExtent(100, 10, 4);
    hipPitchedPtr pitched;
    MUST(hipMalloc3D(&pitched, extent));
    std::vector<unsigned char> from(4000), to(4000);
    for (size_t n = 0; n < from.size(); n++) from[n] = (unsigned char)(n * 13);
    hipMemcpy3DParms there = {}, back = {};
    there.srcPtr = make_hipPitchedPtr(from.data(), 100, 100, 10);
    there.dstPtr = pitched;
    there.extent = extent;
    there.kind = hipMemcpyHostToDevice;
    MUST(hipMemcpy3D(&there));
    back.srcPtr = pitched;
    back.dstPtr = make_hipPitchedPtr(to.data(), 100, 100, 10);
    back.extent = extent;
    back.kind = hipMemcpyDeviceToHost;
    MUST(hipMemcpy3D(&back));
    printf("pitched: %s\n", from == to ? "right" : "wrong");
    hipGraph_t graph;
    hipGraphNode_t fill, copy;
    hipGraphExec_t executable;
    unsigned char *filled = device_memory<unsigned char>(4096), bytes[16] = {0};
    hipMemsetParams parameters = {};
    parameters.dst = filled;
    parameters.elementSize = 1;
    parameters.value = 9;
    parameters.width = 4096;
    parameters.height = 1;
    MUST(hipGraphCreate(&graph, 0));
    MUST(hipGraphAddMemsetNode(&fill, graph, nullptr, 0, &parameters));
    MUST(hipGraphAddMemcpyNode1D(&copy, graph, &fill, 1, bytes, filled, sizeof bytes, hipMemcpyDeviceToHost));
    MUST(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
    MUST(hipGraphLaunch(executable, stream));
    MUST(hipStreamSynchronize(stream));
    printf("graph %d and %d\n", bytes[0], bytes[15]);
    size_t free_before, free_after, total;
    MUST(hipMemGetInfo(&free_before, &total));
    void *large = device_memory<unsigned char>((size_t)1 << 30);
    MUST(hipMemGetInfo(&free_after, &total));
    printf("free %d\n", free_before - free_after >= (size_t)1 << 30 && free_before <= total);
    MUST(hipFree(large));
}

// Two GPUs, or two partitions: each has its own memory, and copies between them have the right data.
static void peers() {
    int devices, access = 0;
    MUST(hipGetDeviceCount(&devices));
    printf("%d devices\n", devices);
    const size_t size = 1 << 20;
    std::vector<unsigned char> from(size, 0x3c), to(size);
    unsigned char *memory[2];
    for (int device = 0; device < 2; device++) {
        MUST(hipSetDevice(device));
        memory[device] = device_memory<unsigned char>(size);
        spin<<<1, 1>>>(1000ul);
        MUST(hipDeviceSynchronize());
    }
    MUST(hipDeviceCanAccessPeer(&access, 0, 1));
    MUST(hipSetDevice(0));
    MUST(hipDeviceEnablePeerAccess(1, 0));
    MUST(hipMemcpy(memory[0], from.data(), size, hipMemcpyHostToDevice));
    MUST(hipMemcpyPeer(memory[1], 1, memory[0], 0, size));
    MUST(hipMemcpy(to.data(), memory[1], size, hipMemcpyDeviceToHost));
    hipPointerAttribute_t attributes;
    MUST(hipPointerGetAttributes(&attributes, memory[1]));
    printf("access %d, memory of device %d, data %s\n", access, attributes.device, from == to ? "right" : "wrong");
    for (int device = 0; device < devices; device++) {
        char name[32];
        MUST(hipDeviceGetPCIBusId(name, sizeof name, device));
        hipDeviceProp_t properties;
        MUST(hipGetDeviceProperties(&properties, device));
        printf("%s %d units\n", name, properties.multiProcessorCount);
    }
}

// Memory and events of one process are used by another.
static void ipc(const char *program) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) exit(70);
    // The child must not inherit an initialized runtime.
    pid_t child = fork();
    if (child == 0) {
        dup2(pair[1], 3);
        execl(program, program, "ipc-child", (char *)nullptr);
        _exit(71);
    }
    unsigned long *counter = device_memory<unsigned long>(1), value = 41;
    MUST(hipMemcpy(counter, &value, sizeof value, hipMemcpyHostToDevice));
    hipIpcMemHandle_t handle;
    MUST(hipIpcGetMemHandle(&handle, counter));
    if (write(pair[0], &handle, sizeof handle) != sizeof handle) exit(70);
    int status;
    waitpid(child, &status, 0);
    MUST(hipMemcpy(&value, counter, sizeof value, hipMemcpyDeviceToHost));
    printf("the child exits with %d, the value is %lu\n", WEXITSTATUS(status), value);
}

static void ipc_child() {
    hipIpcMemHandle_t handle;
    if (read(3, &handle, sizeof handle) != sizeof handle) exit(70);
    void *memory;
    MUST(hipIpcOpenMemHandle(&memory, handle, hipIpcMemLazyEnablePeerAccess));
    unsigned long value = 0;
    MUST(hipMemcpy(&value, memory, sizeof value, hipMemcpyDeviceToHost));
    increment<<<1, 1>>>((unsigned long *)memory);
    MUST(hipDeviceSynchronize());
    MUST(hipIpcCloseMemHandle(memory));
    exit(value == 41 ? 0 : 72);
}

// Memory that is mapped at reserved addresses.
static void virtual_memory() {
    hipMemAllocationProp property = {};
    property.type = hipMemAllocationTypePinned;
    property.location.type = hipMemLocationTypeDevice;
    property.location.id = 0;
    size_t granularity;
    MUST(hipMemGetAllocationGranularity(&granularity, &property, hipMemAllocationGranularityRecommended));
    size_t size = 2 * granularity;
    hipMemGenericAllocationHandle_t handles[2];
    void *address;
    MUST(hipMemAddressReserve(&address, 2 * size, granularity, nullptr, 0));
    hipMemAccessDesc access = {};
    access.location = property.location;
    access.flags = hipMemAccessFlagsProtReadWrite;
    for (int n = 0; n < 2; n++) {
        MUST(hipMemCreate(&handles[n], size, &property, 0));
        MUST(hipMemMap((char *)address + n * size, size, 0, handles[n], 0));
    }
    MUST(hipMemSetAccess(address, 2 * size, &access, 1));
    std::vector<unsigned char> from(2 * size, 0x77), to(2 * size);
    MUST(hipMemcpy(address, from.data(), 2 * size, hipMemcpyHostToDevice));
    MUST(hipMemcpy(to.data(), address, 2 * size, hipMemcpyDeviceToHost));
    printf("data %s\n", from == to ? "right" : "wrong");
    for (int n = 0; n < 2; n++) {
        MUST(hipMemUnmap((char *)address + n * size, size));
        MUST(hipMemRelease(handles[n]));
    }
    MUST(hipMemAddressFree(address, 2 * size));
}

// The errors of the runtime, and that it works after them.
static void errors() {
    void *memory;
    printf("too much: %s\n", hipGetErrorName(hipMalloc(&memory, (size_t)1 << 46)));
    printf("bad pointer: %s\n", hipGetErrorName(hipFree((void *)0x1234)));
    printf("bad device: %s\n", hipGetErrorName(hipSetDevice(99)));
    hipPointerAttribute_t attributes;
    int local = 0;
    hipError_t error = hipPointerGetAttributes(&attributes, &local);
    printf("host pointer: %d\n", error == hipErrorInvalidValue || attributes.devicePointer == nullptr);
    (void)hipGetLastError();
    spin<<<1, 1>>>(1000ul);
    MUST(hipDeviceSynchronize());
    printf("works\n");
}

// A child after fork cannot use the device, and leaves the parent's usable. It exits without destructors, as worker processes of
// frameworks do: HIP 6.4 waits in them for a thread that only its parent has.
static void fork_child() {
    unsigned long *counter = device_memory<unsigned long>(1), value = 0;
    MUST(hipMemset(counter, 0, sizeof *counter));
    MUST(hipDeviceSynchronize());
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *memory;
        _exit(hipMalloc(&memory, 1 << 20) == hipSuccess);
    }
    int status;
    waitpid(child, &status, 0);
    printf("the child %s with %d\n", WIFEXITED(status) ? "exits" : "is killed", WEXITSTATUS(status));
    for (int n = 0; n < 10; n++) increment<<<1, 1>>>(counter);
    MUST(hipMemcpy(&value, counter, sizeof value, hipMemcpyDeviceToHost));
    printf("%lu kernels\n", value);
}

// Kernels are in flight, and threads launch, when the process exits.
static void exit_busy() {
    hipStream_t stream;
    MUST(hipStreamCreate(&stream));
    for (int n = 0; n < 20; n++) spin<<<1, 1, 0, stream>>>(20000000ul);
    printf("exits\n");
    fflush(stdout);
    exit(0);
}

// A device-side wait for a value that the host writes later.
static void wait_value() {
    uint64_t *word;
    MUST(hipExtMallocWithFlags((void **)&word, 8, hipMallocSignalMemory));
    *word = 0;
    hipStream_t stream;
    MUST(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    unsigned long *counter;
    MUST(hipHostMalloc((void **)&counter, sizeof *counter, 0));
    *(volatile unsigned long *)counter = 0;
    MUST(hipStreamWaitValue64(stream, word, 7, hipStreamWaitValueGte, ~0ull));
    increment<<<1, 1, 0, stream>>>(counter);
    MUST(hipStreamWriteValue64(stream, word, 9, 0));
    usleep(20000);
    printf("before: %lu\n", *(volatile unsigned long *)counter);
    __atomic_store_n(word, 7, __ATOMIC_RELEASE);
    MUST(hipStreamSynchronize(stream));
    printf("after: %lu, written %lu\n", *(volatile unsigned long *)counter, (unsigned long)*word);
}

// Kernels without end, one line for each round: FEATURE COMMANDS LENGTH_US STREAMS.
static void work(int commands, unsigned long length_us, int count) {
    std::vector<hipStream_t> streams(count);
    for (hipStream_t &stream : streams) MUST(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    for (int round = 0;; round++) {
        for (int n = 0; n < commands; n++) spin<<<1, 1, 0, streams[n % count]>>>(length_us * 1000);
        for (hipStream_t stream : streams) MUST(hipStreamSynchronize(stream));
        printf("round %d\n", round);
        fflush(stdout);
    }
}

// The latency of requests in microseconds: COUNT COMMANDS LENGTH_US PERIOD_MS.
static void requests(int count, int commands, unsigned long length_us, int period_ms) {
    hipStream_t stream;
    MUST(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    spin<<<1, 1, 0, stream>>>(1000ul);
    MUST(hipStreamSynchronize(stream));
    for (int request = 0; request < count; request++) {
        timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (int n = 0; n < commands; n++) spin<<<1, 1, 0, stream>>>(length_us * 1000);
        MUST(hipStreamSynchronize(stream));
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%ld\n", (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000);
        fflush(stdout);
        usleep(period_ms * 1000);
    }
    printf("idle\n");
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv) {
    std::string feature = argc > 1 ? argv[1] : "";
    auto number = [&](int n) { return argc > n ? atol(argv[n]) : 0; };
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (feature == "streams") streams();
    else if (feature == "events") events();
    else if (feature == "graphs") graphs();
    else if (feature == "host-functions") host_functions();
    else if (feature == "copies") copies();
    else if (feature == "memory") memory_kinds();
    else if (feature == "peers") peers();
    else if (feature == "ipc") ipc(argv[0]);
    else if (feature == "ipc-child") ipc_child();
    else if (feature == "virtual-memory") virtual_memory();
    else if (feature == "errors") errors();
    else if (feature == "fork") fork_child();
    else if (feature == "exit") exit_busy();
    else if (feature == "wait-value") wait_value();
    else if (feature == "work") work(number(2), number(3), number(4));
    else if (feature == "requests") requests(number(2), number(3), number(4), number(5));
    else return 64;
    return 0;
}
