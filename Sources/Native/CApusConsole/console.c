// Made by scripts/console-files from Sources/Edges/ApusConsole/files. Do not edit.
#include "CApusConsole.h"
#pragma clang diagnostic ignored "-Wc23-extensions"
static const unsigned char file0[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus.js" suffix(, 0) if_empty(0)
};
static const unsigned char file1[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/codecs.js" suffix(, 0) if_empty(0)
};
static const unsigned char file2[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/fmp4.js" suffix(, 0) if_empty(0)
};
static const unsigned char file3[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/frames.js" suffix(, 0) if_empty(0)
};
static const unsigned char file4[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/link.js" suffix(, 0) if_empty(0)
};
static const unsigned char file5[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/microphone.js" suffix(, 0) if_empty(0)
};
static const unsigned char file6[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/mse.js" suffix(, 0) if_empty(0)
};
static const unsigned char file7[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/pace.js" suffix(, 0) if_empty(0)
};
static const unsigned char file8[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/player.js" suffix(, 0) if_empty(0)
};
static const unsigned char file9[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/session.js" suffix(, 0) if_empty(0)
};
static const unsigned char file10[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/sound.js" suffix(, 0) if_empty(0)
};
static const unsigned char file11[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/stills.js" suffix(, 0) if_empty(0)
};
static const unsigned char file12[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/streams.js" suffix(, 0) if_empty(0)
};
static const unsigned char file13[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/talk.js" suffix(, 0) if_empty(0)
};
static const unsigned char file14[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/texts.js" suffix(, 0) if_empty(0)
};
static const unsigned char file15[] = {
#embed "../../../Sources/Edges/ApusConsole/files/apus/webcodecs.js" suffix(, 0) if_empty(0)
};
static const unsigned char file16[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/account.js" suffix(, 0) if_empty(0)
};
static const unsigned char file17[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/api.js" suffix(, 0) if_empty(0)
};
static const unsigned char file18[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/app.js" suffix(, 0) if_empty(0)
};
static const unsigned char file19[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/calls.js" suffix(, 0) if_empty(0)
};
static const unsigned char file20[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/camera.js" suffix(, 0) if_empty(0)
};
static const unsigned char file21[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/cameras.js" suffix(, 0) if_empty(0)
};
static const unsigned char file22[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/console.css" suffix(, 0) if_empty(0)
};
static const unsigned char file23[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/dom.js" suffix(, 0) if_empty(0)
};
static const unsigned char file24[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/events.js" suffix(, 0) if_empty(0)
};
static const unsigned char file25[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/icon.svg" suffix(, 0) if_empty(0)
};
static const unsigned char file26[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/messages.js" suffix(, 0) if_empty(0)
};
static const unsigned char file27[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/operator.js" suffix(, 0) if_empty(0)
};
static const unsigned char file28[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/recordings.js" suffix(, 0) if_empty(0)
};
static const unsigned char file29[] = {
#embed "../../../Sources/Edges/ApusConsole/files/console/texts.js" suffix(, 0) if_empty(0)
};
static const unsigned char file30[] = {
#embed "../../../Sources/Edges/ApusConsole/files/index.html" suffix(, 0) if_empty(0)
};
static const struct apus_console_file files[] = {
    {"apus.js", file0, sizeof file0 - 1},
    {"apus/codecs.js", file1, sizeof file1 - 1},
    {"apus/fmp4.js", file2, sizeof file2 - 1},
    {"apus/frames.js", file3, sizeof file3 - 1},
    {"apus/link.js", file4, sizeof file4 - 1},
    {"apus/microphone.js", file5, sizeof file5 - 1},
    {"apus/mse.js", file6, sizeof file6 - 1},
    {"apus/pace.js", file7, sizeof file7 - 1},
    {"apus/player.js", file8, sizeof file8 - 1},
    {"apus/session.js", file9, sizeof file9 - 1},
    {"apus/sound.js", file10, sizeof file10 - 1},
    {"apus/stills.js", file11, sizeof file11 - 1},
    {"apus/streams.js", file12, sizeof file12 - 1},
    {"apus/talk.js", file13, sizeof file13 - 1},
    {"apus/texts.js", file14, sizeof file14 - 1},
    {"apus/webcodecs.js", file15, sizeof file15 - 1},
    {"console/account.js", file16, sizeof file16 - 1},
    {"console/api.js", file17, sizeof file17 - 1},
    {"console/app.js", file18, sizeof file18 - 1},
    {"console/calls.js", file19, sizeof file19 - 1},
    {"console/camera.js", file20, sizeof file20 - 1},
    {"console/cameras.js", file21, sizeof file21 - 1},
    {"console/console.css", file22, sizeof file22 - 1},
    {"console/dom.js", file23, sizeof file23 - 1},
    {"console/events.js", file24, sizeof file24 - 1},
    {"console/icon.svg", file25, sizeof file25 - 1},
    {"console/messages.js", file26, sizeof file26 - 1},
    {"console/operator.js", file27, sizeof file27 - 1},
    {"console/recordings.js", file28, sizeof file28 - 1},
    {"console/texts.js", file29, sizeof file29 - 1},
    {"index.html", file30, sizeof file30 - 1},
};
int apus_console_file_count(void) { return 31; }
const struct apus_console_file *apus_console_file_at(int number) { return &files[number]; }
