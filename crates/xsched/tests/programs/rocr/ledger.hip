// Work whose order is known, for comparison with the ledger of the packets that the device executed.
//   ledger order SEED COUNT THREADS HOST_FILE   random work on many streams, from several threads
//   ledger graph REPLAYS HOST_FILE              graphs with branches, replayed between other kernels
//   ledger burst COUNT NANOSECONDS              kernels that are all launched before the first is waited for; prints when
//   ledger leader FILE COUNT NANOSECONDS        one kernel, and a burst when a file exists
//   ledger until FILE NANOSECONDS               the same kernel again and again, until a file exists
//   ledger memory FILE                          fills and small copies without a kernel of its own, until a file exists
//   ledger copies SIZE...                       copies of each size between two kernels with labels: for each size to the device and to the
//                                               host, with pinned and with pageable memory
// Each labelled kernel and host function is printed with the ones that it must follow: `LABEL#N: LABEL#N ...`, where N counts
// the executions of that label. HOST_FILE receives `LABEL#N START END` for each host function, in the time of CLOCK_MONOTONIC.
#include "check.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void spin(uint64_t nanoseconds, uint64_t label) {}
__global__ void increment(unsigned long long *counter, uint64_t label) { atomicAdd(counter, 1); }
__global__ void fill(float *to, float value, uint64_t count, uint64_t label) {
    for (uint64_t n = threadIdx.x; n < count; n += blockDim.x) to[n] = value;
}
__global__ void add(float *to, const float *from, uint64_t count, uint64_t label) {
    for (uint64_t n = threadIdx.x; n < count; n += blockDim.x) to[n] += from[n];
}

static uint64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

using Frontier = std::set<std::string>;

static std::string name_of(uint64_t label, uint64_t execution = 0) { return std::to_string(label) + "#" + std::to_string(execution); }

// What must have ended before the next work of a stream starts.
static std::string after(const std::string &name, const Frontier &frontier) {
    std::string line = name + ":";
    for (auto &earlier : frontier) line += " " + earlier;
    return line + "\n";
}

struct HostCall {
    uint64_t label, start, end;
    uint64_t executions;
};

static std::mutex host_lock;
static std::string host_lines;

static void host_function(void *argument) {
    auto *call = static_cast<HostCall *>(argument);
    uint64_t start = now();
    std::lock_guard<std::mutex> guard(host_lock);
    host_lines += name_of(call->label, call->executions++) + " " + std::to_string(start) + " " + std::to_string(now()) + "\n";
}

static void write_host_lines(const char *path) {
    FILE *file = std::fopen(path, "w");
    if (file == nullptr || std::fwrite(host_lines.data(), 1, host_lines.size(), file) != host_lines.size() || std::fclose(file) != 0) std::_Exit(3);
}

constexpr size_t FLOATS = 3000;

struct Stream {
    hipStream_t stream;
    float *memory, *other;
    unsigned long long *counter;
    Frontier frontier;
    uint64_t increments = 0;
};

struct Event {
    hipEvent_t event;
    bool is_recorded = false;
    Frontier frontier;
};

// The threads create their streams before any of them destroys one, so that no stream gets the queue of an earlier one.
static pthread_barrier_t all_threads;

static void work(uint64_t thread, uint64_t seed, uint64_t count, std::string *output) {
    Random dice(seed * 1000 + thread);
    std::vector<Stream> streams(6);
    std::vector<Event> events(6);
    std::vector<std::unique_ptr<HostCall>> calls;
    std::vector<float> values(FLOATS);
    uint64_t next_label = (thread + 1) * 1000000;
    for (size_t n = 0; n < streams.size(); n++) {
        Stream &stream = streams[n];
        CHECK(hipStreamCreateWithPriority(&stream.stream, hipStreamNonBlocking, n == 0 ? -1 : 0));
        CHECK(hipMalloc(&stream.memory, FLOATS * sizeof(float)));
        CHECK(hipMalloc(&stream.other, FLOATS * sizeof(float)));
        CHECK(hipMalloc(&stream.counter, sizeof *stream.counter));
        CHECK(hipMemsetAsync(stream.memory, 0, FLOATS * sizeof(float), stream.stream));
        CHECK(hipMemsetAsync(stream.other, 0, FLOATS * sizeof(float), stream.stream));
        CHECK(hipMemsetAsync(stream.counter, 0, sizeof *stream.counter, stream.stream));
    }
    for (auto &event : events) CHECK(hipEventCreateWithFlags(&event.event, hipEventDisableTiming));
    pthread_barrier_wait(&all_threads);
    for (uint64_t n = 0; n < count; n++) {
        Stream &stream = streams[dice.below(streams.size())];
        Event &event = events[dice.below(events.size())];
        uint64_t choice = dice.below(16), label = next_label, start = dice.below(FLOATS / 2), size = 1 + dice.below(FLOATS / 2);
        bool is_labelled = choice < 9;
        if (is_labelled) {
            next_label++;
            *output += after(name_of(label), stream.frontier);
            stream.frontier = {name_of(label)};
        }
        switch (choice) {
        case 0: case 1: case 2: case 3: spin<<<1, 64, 0, stream.stream>>>(5000 + dice.below(60000), label); break;
        case 4: increment<<<1, 1, 0, stream.stream>>>(stream.counter, label), stream.increments++; break;
        case 5: case 6: fill<<<1, 64, 0, stream.stream>>>(stream.memory + start, static_cast<float>(dice.below(100)), size, label); break;
        case 7: add<<<1, 64, 0, stream.stream>>>(stream.memory + start, stream.other + start, size, label); break;
        case 8:
            calls.push_back(std::make_unique<HostCall>(HostCall{label, 0, 0, 0}));
            CHECK(hipLaunchHostFunc(stream.stream, host_function, calls.back().get()));
            break;
        case 9: case 10:
            CHECK(hipEventRecord(event.event, stream.stream));
            event.is_recorded = true, event.frontier = stream.frontier;
            break;
        case 11: case 12:
            if (!event.is_recorded) break;
            CHECK(hipStreamWaitEvent(stream.stream, event.event, 0));
            stream.frontier.insert(event.frontier.begin(), event.frontier.end());
            break;
        case 13: CHECK(hipMemsetAsync(stream.other + start, static_cast<int>(dice.below(3)), size * sizeof(float), stream.stream)); break;
        case 14: CHECK(hipMemcpyAsync(stream.other + start, stream.memory + start, size * sizeof(float), hipMemcpyDeviceToDevice, stream.stream)); break;
        default:
            if (dice.below(8) == 0) CHECK(hipStreamSynchronize(stream.stream));
            break;
        }
        CHECK(hipGetLastError());
    }
    for (auto &stream : streams) {
        CHECK(hipStreamSynchronize(stream.stream));
        uint64_t hash = 1469598103934665603u;
        for (float *memory : {stream.memory, stream.other}) {
            CHECK(hipMemcpy(values.data(), memory, FLOATS * sizeof(float), hipMemcpyDeviceToHost));
            for (size_t n = 0; n < FLOATS * sizeof(float); n++) hash = (hash ^ reinterpret_cast<unsigned char *>(values.data())[n]) * 1099511628211u;
        }
        unsigned long long counter;
        CHECK(hipMemcpy(&counter, stream.counter, sizeof counter, hipMemcpyDeviceToHost));
        char line[100];
        std::snprintf(line, sizeof line, "contents %016llx, %llu of %llu increments\n", static_cast<unsigned long long>(hash), counter, static_cast<unsigned long long>(stream.increments));
        *output += line;
    }
    pthread_barrier_wait(&all_threads);
    for (auto &stream : streams) {
        CHECK(hipFree(stream.memory));
        CHECK(hipFree(stream.other));
        CHECK(hipFree(stream.counter));
        CHECK(hipStreamDestroy(stream.stream));
    }
    for (auto &event : events) CHECK(hipEventDestroy(event.event));
}

static void order(uint64_t seed, uint64_t count, uint64_t threads) {
    std::vector<std::string> outputs(threads);
    std::vector<std::thread> running;
    pthread_barrier_init(&all_threads, nullptr, static_cast<unsigned>(threads));
    if (threads == 1) work(0, seed, count, &outputs[0]);
    else
        for (uint64_t n = 0; n < threads; n++) running.emplace_back(work, n, seed, count, &outputs[n]);
    for (auto &thread : running) thread.join();
    for (auto &output : outputs) std::fputs(output.c_str(), stdout);
}

// The labels of a graph's nodes, and those that each must follow.
using Shape = std::map<uint64_t, std::vector<uint64_t>>;

struct Graph {
    hipGraphExec_t executable;
    Shape shape;
    uint64_t launches = 0;
};

static HostCall graph_call = {905, 0, 0, 0};

// A root, three branches, one with a host function and one with copies, and a join.
static Graph captured(float *memory, unsigned long long *counter) {
    hipStream_t streams[3];
    hipEvent_t forked, joined[2];
    for (auto &stream : streams) CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    CHECK(hipEventCreateWithFlags(&forked, hipEventDisableTiming));
    for (auto &event : joined) CHECK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
    CHECK(hipStreamBeginCapture(streams[0], hipStreamCaptureModeThreadLocal));
    spin<<<1, 64, 0, streams[0]>>>(20000, 901);
    CHECK(hipEventRecord(forked, streams[0]));
    for (int n = 1; n < 3; n++) CHECK(hipStreamWaitEvent(streams[n], forked, 0));
    spin<<<1, 64, 0, streams[0]>>>(30000, 902);
    increment<<<1, 1, 0, streams[0]>>>(counter, 903);
    spin<<<1, 64, 0, streams[1]>>>(25000, 904);
    CHECK(hipLaunchHostFunc(streams[1], host_function, &graph_call));
    CHECK(hipMemsetAsync(memory, 1, 1000, streams[2]));
    CHECK(hipMemcpyAsync(memory + 500, memory, 1000, hipMemcpyDeviceToDevice, streams[2]));
    fill<<<1, 64, 0, streams[2]>>>(memory + 1000, 2.5f, 300, 906);
    for (int n = 0; n < 2; n++) {
        CHECK(hipEventRecord(joined[n], streams[n + 1]));
        CHECK(hipStreamWaitEvent(streams[0], joined[n], 0));
    }
    spin<<<1, 64, 0, streams[0]>>>(10000, 907);
    hipGraph_t graph;
    CHECK(hipStreamEndCapture(streams[0], &graph));
    Graph result = {nullptr, {{901, {}}, {902, {901}}, {903, {902}}, {904, {901}}, {905, {904}}, {906, {901}}, {907, {903, 905, 906}}}};
    CHECK(hipGraphInstantiate(&result.executable, graph, nullptr, nullptr, 0));
    CHECK(hipGraphDestroy(graph));
    for (auto &stream : streams) CHECK(hipStreamDestroy(stream));
    return result;
}

// Layers of kernels, each of which follows two of the layer before.
static Graph assembled() {
    hipGraph_t graph;
    CHECK(hipGraphCreate(&graph, 0));
    Graph result = {nullptr, {}};
    std::vector<hipGraphNode_t> previous;
    std::vector<uint64_t> labels;
    for (uint64_t layer = 0; layer < 4; layer++) {
        std::vector<hipGraphNode_t> nodes;
        std::vector<uint64_t> names;
        // With four nodes in a layer, hipGraphLaunch of HIP 6.4.3 accesses memory that it does not have.
        uint64_t width = layer == 0 || layer == 3 ? 1 : 3;
        for (uint64_t n = 0; n < width; n++) {
            uint64_t nanoseconds = 10000 + 4000 * n, label = 800 + 10 * layer + n;
            void *arguments[] = {&nanoseconds, &label};
            hipKernelNodeParams parameters = {};
            parameters.func = reinterpret_cast<void *>(spin);
            parameters.gridDim = dim3(1), parameters.blockDim = dim3(64), parameters.kernelParams = arguments;
            std::vector<hipGraphNode_t> dependencies;
            for (size_t m = 0; m < previous.size(); m++)
                if (layer == 3 || m == n % previous.size() || m == (n + 1) % previous.size()) {
                    dependencies.push_back(previous[m]);
                    result.shape[label].push_back(labels[m]);
                }
            result.shape[label];
            hipGraphNode_t node;
            CHECK(hipGraphAddKernelNode(&node, graph, dependencies.data(), dependencies.size(), &parameters));
            nodes.push_back(node), names.push_back(label);
        }
        previous = nodes, labels = names;
    }
    CHECK(hipGraphInstantiate(&result.executable, graph, nullptr, nullptr, 0));
    CHECK(hipGraphDestroy(graph));
    return result;
}

static void launch(Graph &graph, hipStream_t stream, Frontier &frontier) {
    CHECK(hipGraphLaunch(graph.executable, stream));
    Frontier last;
    for (auto &[label, earlier] : graph.shape) last.insert(name_of(label, graph.launches));
    for (auto &[label, earlier] : graph.shape) {
        Frontier before;
        for (uint64_t other : earlier) before.insert(name_of(other, graph.launches)), last.erase(name_of(other, graph.launches));
        std::fputs(after(name_of(label, graph.launches), earlier.empty() ? frontier : before).c_str(), stdout);
    }
    frontier = last;
    graph.launches++;
}

static void graphs(uint64_t replays) {
    float *memory;
    unsigned long long *counter, count;
    hipStream_t stream;
    Frontier frontier;
    CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    CHECK(hipMalloc(&memory, 8000));
    CHECK(hipMalloc(&counter, sizeof *counter));
    CHECK(hipMemset(memory, 0, 8000));
    CHECK(hipMemset(counter, 0, sizeof *counter));
    CHECK(hipDeviceSynchronize());
    Graph first = captured(memory, counter), second = assembled();
    uint64_t label = 1000;
    for (uint64_t n = 0; n < replays; n++) {
        launch(first, stream, frontier);
        if (n % 3 == 0) {
            spin<<<1, 64, 0, stream>>>(8000, label);
            std::fputs(after(name_of(label), frontier).c_str(), stdout);
            frontier = {name_of(label++)};
        }
        launch(second, stream, frontier);
        if (n % 16 == 15) CHECK(hipStreamSynchronize(stream));
    }
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipMemcpy(&count, counter, sizeof count, hipMemcpyDeviceToHost));
    std::vector<unsigned char> contents(8000);
    CHECK(hipMemcpy(contents.data(), memory, contents.size(), hipMemcpyDeviceToHost));
    unsigned long long sum = 0;
    for (size_t n = 0; n < contents.size(); n++) sum = sum * 31 + contents[n];
    std::printf("%llu increments, contents %016llx\n", count, sum);
    CHECK(hipGraphExecDestroy(first.executable));
    CHECK(hipGraphExecDestroy(second.executable));
    CHECK(hipFree(memory));
    CHECK(hipFree(counter));
    CHECK(hipStreamDestroy(stream));
}

static void burst(uint64_t count, uint64_t nanoseconds) {
    for (uint64_t n = 0; n < count; n++) spin<<<1, 64>>>(nanoseconds, n + 1);
    CHECK(hipGetLastError());
    std::printf("launched %llu\n", static_cast<unsigned long long>(now()));
    std::fflush(stdout);
    CHECK(hipDeviceSynchronize());
}

// Until a file exists. The device has 20 to 40 operations at all times, so that the queue never becomes idle.
template <class Operation> static void repeat_until(const char *file, Operation operation) {
    hipEvent_t ended[2];
    for (auto &event : ended) CHECK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
    for (uint64_t round = 0; access(file, F_OK) != 0; round++) {
        for (uint64_t n = 0; n < 20; n++) operation(n);
        CHECK(hipGetLastError());
        CHECK(hipEventRecord(ended[round % 2], nullptr));
        if (round > 0) CHECK(hipEventSynchronize(ended[(round + 1) % 2]));
    }
    CHECK(hipDeviceSynchronize());
    for (auto &event : ended) CHECK(hipEventDestroy(event));
}

static void memory_operations(const char *file) {
    constexpr size_t SIZE = 4096;
    char *memory, *pinned;
    CHECK(hipMalloc(&memory, 2 * SIZE));
    CHECK(hipHostMalloc(&pinned, SIZE, 0));
    repeat_until(file, [=](uint64_t n) {
        switch (n % 4) {
        case 0: CHECK(hipMemsetAsync(memory, static_cast<int>(n), SIZE, nullptr)); break;
        case 1: CHECK(hipMemcpyAsync(memory + SIZE, memory, SIZE, hipMemcpyDeviceToDevice, nullptr)); break;
        case 2: CHECK(hipMemcpyAsync(memory, pinned, SIZE, hipMemcpyHostToDevice, nullptr)); break;
        default: CHECK(hipMemcpyAsync(pinned, memory, SIZE, hipMemcpyDeviceToHost, nullptr)); break;
        }
    });
    CHECK(hipFree(memory));
    CHECK(hipHostFree(pinned));
}

static void copies(const std::vector<uint64_t> &sizes) {
    uint64_t largest = *std::max_element(sizes.begin(), sizes.end()), label = 0;
    char *memory, *pinned;
    std::vector<char> pageable(largest);
    CHECK(hipMalloc(&memory, largest));
    CHECK(hipHostMalloc(&pinned, largest, 0));
    auto separate = [&] {
        CHECK(hipDeviceSynchronize());
        spin<<<1, 64>>>(1000, ++label);
        CHECK(hipGetLastError());
        CHECK(hipDeviceSynchronize());
    };
    for (uint64_t size : sizes)
        for (char *host : {pinned, pageable.data()}) {
            separate();
            CHECK(hipMemcpyAsync(memory, host, size, hipMemcpyHostToDevice, nullptr));
            separate();
            CHECK(hipMemcpyAsync(host, memory, size, hipMemcpyDeviceToHost, nullptr));
        }
    separate();
    CHECK(hipFree(memory));
    CHECK(hipHostFree(pinned));
}

int main(int argc, char **argv) {
    auto number = [&](int n) { return n < argc ? std::strtoull(argv[n], nullptr, 0) : 0; };
    std::string command = argc > 1 ? argv[1] : "";
    if (command == "order" && argc > 5) {
        order(number(2), number(3), number(4));
        write_host_lines(argv[5]);
    } else if (command == "graph" && argc > 3) {
        graphs(number(2));
        write_host_lines(argv[3]);
    } else if (command == "burst" && argc > 3) {
        burst(number(2), number(3));
    } else if (command == "leader" && argc > 4) {
        spin<<<1, 64>>>(1000, 0);
        CHECK(hipDeviceSynchronize());
        while (access(argv[2], F_OK) != 0) usleep(1000);
        burst(number(3), number(4));
    } else if (command == "until" && argc > 3) {
        repeat_until(argv[2], [&](uint64_t n) { spin<<<1, 64>>>(number(3), n + 1); });
    } else if (command == "memory" && argc > 2) {
        memory_operations(argv[2]);
    } else if (command == "copies" && argc > 2) {
        std::vector<uint64_t> sizes;
        for (int n = 2; n < argc; n++) sizes.push_back(number(n));
        copies(sizes);
    } else {
        return 64;
    }
    std::puts("done");
    return 0;
}
