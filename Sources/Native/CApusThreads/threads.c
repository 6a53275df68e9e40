#include "CApusThreads.h"

#include <sys/prctl.h>

void apus_thread_name(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }
