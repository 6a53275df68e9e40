#include "CApusMemory.h"

#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
size_t apus_allocated_bytes(void) { return mallinfo2().uordblks; }
#else
size_t apus_allocated_bytes(void) { return 0; }
#endif
