// A Vulkan program that serves requests: vk_requests REQUESTS SUBMITS STEPS PAUSE_MS [cost]
//
// Prints "ready", then the latency of each request in microseconds, then whether the result is correct. With "cost", prints in place of
// the latency the median time of the request's calls of vkQueueSubmit in nanoseconds.
#include "vk_machine.h"

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int requests = atoi(argv[1]), submits = atoi(argv[2]), steps = atoi(argv[3]), pause_ms = atoi(argv[4]);
    int prints_cost = argc > 5 && strcmp(argv[5], "cost") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    Machine m;
    open_machine(&m);
    VkCommandBuffer commands = record(&m, steps, VK_NULL_HANDLE);
    VkFence fence = create_fence(&m);
    uint64_t *costs = calloc(submits, sizeof *costs);
    submit(&m, commands, fence);
    await(&m, fence);
    puts("ready");
    for (int n = 0; n < requests; n++) {
        uint64_t start = now_ns();
        for (int k = 0; k < submits; k++) {
            uint64_t before = now_ns();
            submit(&m, commands, k + 1 == submits ? fence : VK_NULL_HANDLE);
            costs[k] = now_ns() - before;
        }
        await(&m, fence);
        uint64_t latency = (now_ns() - start) / 1000;
        if (prints_cost) {
            qsort(costs, submits, sizeof *costs, ascending);
            latency = costs[submits / 2];
        }
        printf("%llu\n", (unsigned long long)latency);
        struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};
        if (pause_ms > 0) nanosleep(&pause, NULL);
    }
    puts(verdict(&m, (uint64_t)steps * (1 + (uint64_t)requests * submits)));
    vkDestroyFence(m.device, fence, NULL);
    close_machine(&m);
    return 0;
}
