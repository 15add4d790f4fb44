/* Passes the function tables of AMD's HIP runtime to rocprofiler-register. Debian builds the runtime without that call.
 *
 * The runtime fills each table in the initializer of a static variable and would pass it on there. This library is
 * preloaded and replaces the function that ends such an initializer: the table is passed at the same place, before the
 * initializer has ended. A runtime function that is called meanwhile waits for it, as in AMD's own builds.
 *
 * REGISTER_ADAPTER_LOG=1 reports each table on standard error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TABLES = 8, MIN_RUNTIME_SLOTS = 300, MIN_SLOTS = 6, MAX_SLOTS = 2000 };

struct table {
    size_t size;
    void *slots[];
};

/* The writable data of a runtime that has no contents in the file, and its code. */
struct runtime {
    const char *name;
    uintptr_t data, data_end, code, code_end;
};

static int is_runtime(const char *path) {
    const char *name = strrchr(path, '/');
    return strncmp(name ? name + 1 : path, "libamdhip64.so", 14) == 0;
}

static int find_segments(struct dl_phdr_info *info, size_t size, void *argument) {
    struct runtime *runtime = argument;
    (void)size;
    if (strcmp(info->dlpi_name, runtime->name) != 0)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        if (segment->p_flags & PF_X)
            runtime->code = start, runtime->code_end = start + segment->p_memsz;
        if (segment->p_flags & PF_W)
            runtime->data = (start + segment->p_filesz + 7) & ~(uintptr_t)7, runtime->data_end = start + segment->p_memsz;
    }
    return 1;
}

/* The number of slots, if a table that is filled begins here, otherwise 0. */
static size_t slots_at(const struct runtime *runtime, uintptr_t address) {
    const struct table *table = (const struct table *)address;
    size_t slots = table->size / 8 - 1;
    if (table->size % 8 != 0 || table->size < 8 * MIN_SLOTS || slots > MAX_SLOTS || address + table->size > runtime->data_end)
        return 0;
    /* A runtime leaves a few slots empty: functions that it does not have. */
    size_t empty = 0;
    for (size_t i = 0; i < slots; i++) {
        uintptr_t function = (uintptr_t)table->slots[i];
        empty += function == 0;
        if (function != 0 && (function < runtime->code || function >= runtime->code_end))
            return 0;
    }
    return empty <= slots / 10 ? slots : 0;
}

/* rocprofiler-register identifies a library by the function that it passes. */
__attribute__((visibility("default"))) uint32_t rocprofiler_register_import_hip(void) { return 60400; }
__attribute__((visibility("default"))) uint32_t rocprofiler_register_import_hip_compiler(void) { return 60400; }

static void pass(const char *name, struct table *table) {
    typedef int (*register_table)(const char *, uint32_t (*)(void), uint32_t, void **, uint64_t, void *);
    typedef int (*set_table)(const char *, uint64_t, uint64_t, void **, uint64_t);
    uint32_t (*import)(void) = strcmp(name, "hip") == 0 ? rocprofiler_register_import_hip : rocprofiler_register_import_hip_compiler;
    void *tables[1] = {table}, *library = dlopen("librocprofiler-register.so.0", RTLD_NOW);
    uint64_t id = 0;
    int result = -1;
    register_table pass_on = library ? (register_table)dlsym(library, "rocprofiler_register_library_api_table") : NULL;
    set_table set = (set_table)dlsym(RTLD_DEFAULT, "rocprofiler_set_api_table");
    if (pass_on)
        result = pass_on(name, import, import(), tables, 1, &id);
    else if (set)
        result = set(name, import(), 0, tables, 1);
    if (getenv("REGISTER_ADAPTER_LOG"))
        fprintf(stderr, "register adapter: %s, %zu slots, %s: %d\n", name, table->size / 8 - 1,
                pass_on ? "rocprofiler-register" : set ? "the tool" : "no tool", result);
}

static void pass_new_tables(const char *library) {
    static void *passed[MAX_TABLES];
    static int count;
    struct runtime runtime = {.name = library};
    dl_iterate_phdr(find_segments, &runtime);
    for (uintptr_t address = runtime.data; address + 8 < runtime.data_end; address += 8) {
        size_t slots = slots_at(&runtime, address);
        int is_new = slots >= MIN_SLOTS - 1 && count < MAX_TABLES;
        for (int i = 0; i < count; i++)
            is_new = is_new && passed[i] != (void *)address;
        if (is_new) {
            passed[count++] = (void *)address;
            pass(slots >= MIN_RUNTIME_SLOTS ? "hip" : "hip_compiler", (struct table *)address);
        }
        if (slots > 0)
            address += 8 * slots;
    }
}

__attribute__((visibility("default"))) void __cxa_guard_release(void *guard) {
    static void (*release)(void *);
    struct dl_find_object caller;
    if (!release)
        release = (void (*)(void *))dlsym(RTLD_NEXT, "__cxa_guard_release");
    if (_dl_find_object(__builtin_return_address(0), &caller) == 0 && caller.dlfo_link_map->l_name && is_runtime(caller.dlfo_link_map->l_name))
        pass_new_tables(caller.dlfo_link_map->l_name);
    release(guard);
}
