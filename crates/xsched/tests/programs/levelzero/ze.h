/*
 * What the Level Zero test programs share: a device, a context, queues, lists, events and the kernels of the stand-in.
 *
 * With OPENED, the loader is not linked: it is opened with dlopen, and every function is looked up.
 */
#ifndef ZE_PROGRAMS_H
#define ZE_PROGRAMS_H

#include <dlfcn.h>
#include <level_zero/ze_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef OPENED
static void *look_up(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(69);
    }
    return found;
}
/* Each call site looks its function up once. */
#define CALL(name) ({ static __typeof__(&name) found; if (found == NULL) found = (__typeof__(&name))look_up(#name); found; })
#else
#define CALL(name) name
#endif

static void must(ze_result_t code, const char *what) {
    if (code != ZE_RESULT_SUCCESS) {
        fprintf(stderr, "%s: error 0x%x\n", what, (unsigned)code);
        exit(70);
    }
}

static inline double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static ze_driver_handle_t driver;
static ze_device_handle_t device;
static ze_context_handle_t context;
static ze_module_handle_t module;

/* Opens the first device. Without one, prints the error and exits. */
static void open_device(void) {
    uint32_t count = 1;
    ze_result_t code = CALL(zeInit)(0);
    if (code == ZE_RESULT_SUCCESS) code = CALL(zeDriverGet)(&count, &driver);
    if (code != ZE_RESULT_SUCCESS || count == 0) {
        printf("no driver: error 0x%x\n", (unsigned)code);
        exit(3);
    }
    count = 1;
    must(CALL(zeDeviceGet)(driver, &count, &device), "device");
    ze_context_desc_t description = {ZE_STRUCTURE_TYPE_CONTEXT_DESC, NULL, 0};
    must(CALL(zeContextCreate)(driver, &description, &context), "context");
    ze_module_desc_t of_module = {ZE_STRUCTURE_TYPE_MODULE_DESC, NULL, ZE_MODULE_FORMAT_IL_SPIRV, 0, NULL, NULL, NULL};
    must(CALL(zeModuleCreate)(context, device, &of_module, &module, NULL), "module");
}

static inline ze_command_queue_desc_t queue_description(ze_command_queue_mode_t mode) {
    ze_command_queue_desc_t description = {ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, NULL, 0, 0, 0, mode, ZE_COMMAND_QUEUE_PRIORITY_NORMAL};
    return description;
}

static inline ze_command_queue_handle_t new_queue(ze_command_queue_mode_t mode) {
    ze_command_queue_desc_t description = queue_description(mode);
    ze_command_queue_handle_t queue;
    must(CALL(zeCommandQueueCreate)(context, device, &description, &queue), "queue");
    return queue;
}

static inline ze_command_list_handle_t new_immediate_list(ze_command_queue_mode_t mode) {
    ze_command_queue_desc_t description = queue_description(mode);
    ze_command_list_handle_t list;
    must(CALL(zeCommandListCreateImmediate)(context, device, &description, &list), "immediate list");
    return list;
}

static inline ze_command_list_handle_t new_list(void) {
    ze_command_list_desc_t description = {ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC, NULL, 0, 0};
    ze_command_list_handle_t list;
    must(CALL(zeCommandListCreate)(context, device, &description, &list), "list");
    return list;
}

static inline void execute(ze_command_queue_handle_t queue, ze_command_list_handle_t list, ze_fence_handle_t fence) {
    must(CALL(zeCommandQueueExecuteCommandLists)(queue, 1, &list, fence), "execute");
}

static inline ze_fence_handle_t new_fence(ze_command_queue_handle_t queue) {
    ze_fence_desc_t description = {ZE_STRUCTURE_TYPE_FENCE_DESC, NULL, 0};
    ze_fence_handle_t fence;
    must(CALL(zeFenceCreate)(queue, &description, &fence), "fence");
    return fence;
}

/* An event in a pool of its own. */
static inline ze_event_handle_t new_event(void) {
    ze_event_pool_desc_t of_pool = {ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, NULL, ZE_EVENT_POOL_FLAG_HOST_VISIBLE, 1};
    ze_event_pool_handle_t pool;
    must(CALL(zeEventPoolCreate)(context, &of_pool, 0, NULL, &pool), "event pool");
    ze_event_desc_t description = {ZE_STRUCTURE_TYPE_EVENT_DESC, NULL, 0, ZE_EVENT_SCOPE_FLAG_HOST, ZE_EVENT_SCOPE_FLAG_HOST};
    ze_event_handle_t event;
    must(CALL(zeEventCreate)(pool, &description, &event), "event");
    return event;
}

static inline void *new_memory(size_t size) {
    ze_device_mem_alloc_desc_t of_device = {ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, NULL, 0, 0};
    ze_host_mem_alloc_desc_t of_host = {ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, NULL, 0};
    void *memory;
    must(CALL(zeMemAllocShared)(context, &of_device, &of_host, size, 0, device, &memory), "memory");
    return memory;
}

static inline ze_kernel_handle_t new_kernel(const char *name) {
    ze_kernel_desc_t description = {ZE_STRUCTURE_TYPE_KERNEL_DESC, NULL, 0, name};
    ze_kernel_handle_t kernel;
    must(CALL(zeKernelCreate)(module, &description, &kernel), name);
    return kernel;
}

static inline void set_argument(ze_kernel_handle_t kernel, uint32_t index, uint64_t value) {
    must(CALL(zeKernelSetArgumentValue)(kernel, index, sizeof value, &value), "argument");
}

/* A kernel that runs for so long, and then adds 1 to a counter. */
static inline ze_kernel_handle_t new_increment(uint64_t us, uint64_t *counter) {
    ze_kernel_handle_t kernel = new_kernel("increment");
    set_argument(kernel, 0, us * 1000);
    set_argument(kernel, 1, (uint64_t)(uintptr_t)counter);
    return kernel;
}

static inline void launch(ze_command_list_handle_t list, ze_kernel_handle_t kernel, ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
    ze_group_count_t groups = {1, 1, 1};
    must(CALL(zeCommandListAppendLaunchKernel)(list, kernel, &groups, signal, count, waits), "launch");
}

#endif
