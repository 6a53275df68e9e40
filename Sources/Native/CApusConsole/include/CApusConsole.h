// The files of the console, which are in Sources/Edges/ApusConsole/files, within the program.
#pragma once

struct apus_console_file {
    // The path below `files`, with slashes.
    const char *path;
    const unsigned char *bytes;
    unsigned long byte_count;
};

int apus_console_file_count(void);
// The file of a number from 0 to the count. It is never freed.
const struct apus_console_file *apus_console_file_at(int number);
