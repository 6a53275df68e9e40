// Made by scripts/console-files from Sources/Edges/ApusConsole/files. Do not edit.
#include "CApusConsole.h"
#pragma clang diagnostic ignored "-Wc23-extensions"
static const unsigned char file0[] = {
#embed "../../../Sources/Edges/ApusConsole/files/index.html" suffix(, 0) if_empty(0)
};
static const struct apus_console_file files[] = {
    {"index.html", file0, sizeof file0 - 1},
};
int apus_console_file_count(void) { return 1; }
const struct apus_console_file *apus_console_file_at(int number) { return &files[number]; }
