/* Serves cudaMalloc from the GPU up to a budget, and from pinned host memory beyond it.

   Loaded before CUDA's runtime (LD_PRELOAD), so that PyTorch's allocator finds these functions
   instead of the runtime's. Memory comes from the driver, in the calling thread's context. */

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_INITIALISED = 3 }; /* cudaError_t */
enum { PORTABLE = 1, MAPPED = 2 };                            /* CU_MEMHOSTALLOC_* */

static int (*allocate_on_device)(uint64_t *, size_t);
static int (*allocate_on_host)(void **, size_t, unsigned);
static int (*free_on_device)(uint64_t);
static int (*free_on_host)(void *);

struct segment {
  void *address;
  size_t bytes;
  int on_host;
  struct segment *next;
};

static struct segment *segments;
static size_t budget = SIZE_MAX, device_bytes, host_bytes, host_peak_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vramfit_set_budget(size_t bytes) {
  pthread_mutex_lock(&lock);
  budget = bytes;
  host_peak_bytes = host_bytes;
  pthread_mutex_unlock(&lock);
}

size_t vramfit_device_bytes(void) { return device_bytes; }
size_t vramfit_host_bytes(void) { return host_bytes; }
size_t vramfit_host_peak_bytes(void) { return host_peak_bytes; }

static int find_driver(void) {
  void *driver;
  if (free_on_host)
    return 1;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver)
    return 0;
  *(void **)&allocate_on_device = dlsym(driver, "cuMemAlloc_v2");
  *(void **)&allocate_on_host = dlsym(driver, "cuMemHostAlloc");
  *(void **)&free_on_device = dlsym(driver, "cuMemFree_v2");
  *(void **)&free_on_host = dlsym(driver, "cuMemFreeHost");
  return allocate_on_device && allocate_on_host && free_on_device && free_on_host;
}

static int allocate(struct segment *new) {
  uint64_t address = 0;
  new->on_host = device_bytes > budget || new->bytes > budget - device_bytes;
  if (new->on_host)
    return allocate_on_host(&new->address, new->bytes, PORTABLE | MAPPED) == SUCCESS;
  if (allocate_on_device(&address, new->bytes) != SUCCESS)
    return 0;
  new->address = (void *)(uintptr_t)address;
  return 1;
}

int cudaMalloc(void **address, size_t bytes) {
  struct segment *new = malloc(sizeof *new);
  int result = OUT_OF_MEMORY;
  if (!new)
    return result;
  new->bytes = bytes;
  pthread_mutex_lock(&lock);
  if (!find_driver()) {
    result = NOT_INITIALISED;
  } else if (allocate(new)) {
    *(new->on_host ? &host_bytes : &device_bytes) += bytes;
    if (host_bytes > host_peak_bytes)
      host_peak_bytes = host_bytes;
    new->next = segments;
    segments = new;
    *address = new->address;
    result = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  if (result != SUCCESS)
    free(new);
  return result;
}

/* What was not allocated here (managed memory) goes to the driver as it is. */
int cudaFree(void *address) {
  struct segment **link, *found;
  int result = SUCCESS;
  if (!address)
    return result;
  pthread_mutex_lock(&lock);
  if (!find_driver()) {
    pthread_mutex_unlock(&lock);
    return NOT_INITIALISED;
  }
  for (link = &segments; *link && (*link)->address != address; link = &(*link)->next)
    ;
  found = *link;
  if (found) {
    *link = found->next;
    *(found->on_host ? &host_bytes : &device_bytes) -= found->bytes;
  }
  if (found && found->on_host)
    result = free_on_host(address);
  else
    result = free_on_device((uint64_t)(uintptr_t)address);
  pthread_mutex_unlock(&lock);
  free(found);
  return result;
}
