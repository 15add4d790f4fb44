// Every way to submit and to wait: vk_calls ROUNDS. Prints the result of each.
#include <pthread.h>

#include "vk_machine.h"

enum { STEPS = 500 };

static Machine m;
static VkCommandBuffer commands;
static uint64_t steps;

static void print(const char *what) {
    steps += STEPS;
    printf("%s: %s\n", what, verdict(&m, steps));
}

static void submit_2(const char *name, const VkSemaphoreSubmitInfo *wait, const VkSemaphoreSubmitInfo *signal) {
    PFN_vkQueueSubmit2 function = (PFN_vkQueueSubmit2)vkGetDeviceProcAddr(m.device, name);
    if (!function) {
        printf("no %s\n", name);
        function = vkQueueSubmit2;
    }
    VkCommandBufferSubmitInfo buffer = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, .commandBuffer = commands};
    VkSubmitInfo2 batch = {VK_STRUCTURE_TYPE_SUBMIT_INFO_2, .waitSemaphoreInfoCount = wait ? 1 : 0, .pWaitSemaphoreInfos = wait,
        .commandBufferInfoCount = 1, .pCommandBufferInfos = &buffer, .signalSemaphoreInfoCount = signal ? 1 : 0, .pSignalSemaphoreInfos = signal};
    check(function(m.queue, 1, &batch, VK_NULL_HANDLE), name);
}

static void fences(void) {
    VkFence fence = create_fence(&m);
    printf("fence before: %d\n", vkGetFenceStatus(m.device, fence));
    submit(&m, commands, fence);
    while (vkGetFenceStatus(m.device, fence) == VK_NOT_READY) {}
    print("status of a fence");
    check(vkResetFences(m.device, 1, &fence), "reset");
    // No batch: the fence follows everything before it.
    submit(&m, commands, VK_NULL_HANDLE);
    check(vkQueueSubmit(m.queue, 0, NULL, fence), "no batch");
    await(&m, fence);
    print("fence without a batch");
    printf("time-out: %d\n", vkWaitForFences(m.device, 1, &fence, 1, 1000));
    vkDestroyFence(m.device, fence, NULL);
}

static VkSemaphore timeline(void) {
    VkSemaphoreTypeCreateInfo type = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type};
    VkSemaphore semaphore;
    check(vkCreateSemaphore(m.device, &info, NULL, &semaphore), "semaphore");
    return semaphore;
}

static void await_value(VkSemaphore semaphore, uint64_t value) {
    VkSemaphoreWaitInfo wait = {VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1, .pSemaphores = &semaphore, .pValues = &value};
    check(vkWaitSemaphores(m.device, &wait, UINT64_MAX), "wait for a semaphore");
}

static VkSemaphoreSubmitInfo at(VkSemaphore semaphore, uint64_t value) {
    return (VkSemaphoreSubmitInfo){VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO, .semaphore = semaphore, .value = value,
        .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
}

// Work that waits for the program: several submissions before the program signals the first.
static void waits_for_program(VkSemaphore semaphore, uint64_t from) {
    for (uint64_t n = 0; n < 8; n++) {
        VkSemaphoreSubmitInfo wait = at(semaphore, from + n + 1), signal = at(semaphore, from + n + 2);
        submit_2("vkQueueSubmit2", &wait, &signal);
        steps += STEPS;
    }
    VkSemaphoreSignalInfo signal = {VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = from + 1};
    check(vkSignalSemaphore(m.device, &signal), "signal");
    await_value(semaphore, from + 9);
    steps -= STEPS;
    print("waits for the program");
}

static void *set_event(void *event) {
    check(vkSetEvent(m.device, (VkEvent)event), "set");
    return NULL;
}

// On some drivers the submission blocks until the event is set: another thread sets it.
static void waits_for_event(void) {
    VkEventCreateInfo info = {VK_STRUCTURE_TYPE_EVENT_CREATE_INFO};
    VkEvent event;
    check(vkCreateEvent(m.device, &info, NULL, &event), "event");
    VkCommandBuffer waiting = record(&m, STEPS, event);
    pthread_t thread;
    pthread_create(&thread, NULL, set_event, (void *)event);
    submit(&m, waiting, VK_NULL_HANDLE);
    pthread_join(thread, NULL);
    check(vkQueueWaitIdle(m.queue), "queue");
    print("waits for an event");
    vkFreeCommandBuffers(m.device, m.commands, 1, &waiting);
    vkDestroyEvent(m.device, event, NULL);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_machine(&m);
    commands = record(&m, STEPS, VK_NULL_HANDLE);
    printf("unknown function: %p\n", (void *)vkGetDeviceProcAddr(m.device, "vkNoSuchFunction"));
    VkSemaphore semaphore = timeline();
    uint64_t value = 0;
    for (int n = 0; n < rounds; n++) {
        submit(&m, commands, VK_NULL_HANDLE);
        check(vkQueueWaitIdle(m.queue), "queue");
        print("queue");
        submit(&m, commands, VK_NULL_HANDLE);
        check(vkDeviceWaitIdle(m.device), "device");
        print("device");
        fences();
        VkSemaphoreSubmitInfo signal = at(semaphore, ++value);
        submit_2("vkQueueSubmit2", NULL, &signal);
        await_value(semaphore, value);
        print("second version");
        signal = at(semaphore, ++value);
        submit_2("vkQueueSubmit2KHR", NULL, &signal);
        await_value(semaphore, value);
        print("extension");
        waits_for_program(semaphore, value);
        value += 9;
        if (n < 8) waits_for_event();
    }
    vkDestroySemaphore(m.device, semaphore, NULL);
    close_machine(&m);
    // A second device after the first: its handles may be the same.
    Machine second;
    open_machine(&second);
    VkFence fence = create_fence(&second);
    submit(&second, record(&second, STEPS, VK_NULL_HANDLE), fence);
    await(&second, fence);
    printf("second device: %s\n", verdict(&second, STEPS));
    vkDestroyFence(second.device, fence, NULL);
    close_machine(&second);
    return 0;
}
