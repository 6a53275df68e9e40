// What the Glibc module does not show of threads.
#pragma once

// Names the calling thread as `top -H` shows it; its first 15 bytes count.
void apus_thread_name(const char *name);
