#ifndef CAPUS_SPHINX_H
#define CAPUS_SPHINX_H

#include <stddef.h>
#include <stdint.h>

// libpocketsphinx 0.8+5prealpha (soname 3), opened with dlopen: a program that does not recognize speech does not need
// it. The library logs nothing.

typedef struct apus_sphinx_library apus_sphinx_library;
typedef struct apus_sphinx apus_sphinx;

// The mean of what is heard first is subtracted from all of an utterance, if it has at least so many frames of 10 ms.
enum { APUS_SPHINX_MEAN_FRAMES = 150 };

enum { APUS_SPHINX_NO_LIBRARY = -1, APUS_SPHINX_NO_MEMORY = -2, APUS_SPHINX_REFUSED = -3 };

// A transition between two states of a grammar, with a word.
typedef struct {
    int32_t from;
    int32_t to;
    int32_t word;
} apus_sphinx_arc;

// A word that was heard: its frames of 10 ms, from first up to and without last, and its acoustic score.
typedef struct {
    int32_t first;
    int32_t last;
    int32_t score;
} apus_sphinx_word;

// Opens libpocketsphinx and libsphinxbase. Once for a process; they are never closed.
int apus_sphinx_open(const char *pocketsphinx, const char *sphinxbase, apus_sphinx_library **out);

// A decoder of an acoustic model with the words of a dictionary file. The file of parameters is the model's feat.params
// with "-cmn none". Without a grammar it hears phones in any order.
int apus_sphinx_new(const apus_sphinx_library *library, const char *model, const char *dictionary,
                    const char *parameters, apus_sphinx **out);

// Gives it a grammar: state 0 is the start. A word must be in the dictionary.
int apus_sphinx_set_grammar(apus_sphinx *sphinx, int32_t states, int32_t final, const char *const *words,
                            int32_t word_count, const apus_sphinx_arc *arcs, size_t arc_count);

// Begins an utterance of 16 kHz. Nothing of the utterances before has an effect on it.
int apus_sphinx_begin(apus_sphinx *sphinx);

// Takes more of it, which is heard at apus_sphinx_settle and apus_sphinx_end.
int apus_sphinx_feed(apus_sphinx *sphinx, const int16_t *samples, size_t count);

// The words are then those of what was fed, without its last tenth of a second. More may follow.
int apus_sphinx_settle(apus_sphinx *sphinx);

// Ends the utterance. Its words and scores can be asked for until more is fed, which is heard with it from its beginning.
int apus_sphinx_end(apus_sphinx *sphinx);

// Hears the same as another decoder has heard, from its beginning to its end.
int apus_sphinx_hear_as(apus_sphinx *sphinx, const apus_sphinx *other);

// Writes the words heard, with spaces between them and a NUL. Returns their length; 0 if there are none, or if
// they do not fit.
size_t apus_sphinx_text(apus_sphinx *sphinx, char *text, size_t capacity);

// The words of the best path without its silences. Returns their number, capacity at most.
size_t apus_sphinx_words(apus_sphinx *sphinx, apus_sphinx_word *words, size_t capacity);

// The acoustic score of the best path in frames of 10 ms from first up to and without last.
int apus_sphinx_score_within(apus_sphinx *sphinx, int32_t first, int32_t last, double *score);

void apus_sphinx_free(apus_sphinx *sphinx);

#endif
