#include "CApusSphinx.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The functions of pocketsphinx.h, ps_search.h and sphinxbase's headers, as the libraries with the number 3 have them.
typedef struct cmd_ln cmd_ln;
typedef struct ps_decoder ps_decoder;
typedef struct ps_seg ps_seg;
typedef struct fsg_model fsg_model;
typedef struct fe fe;

struct apus_sphinx_library {
    cmd_ln *(*cmd_ln_init)(cmd_ln *, const void *definitions, int32_t strict, ...);
    int (*cmd_ln_free_r)(cmd_ln *);
    FILE *(*err_set_logfp)(FILE *);
    fe *(*fe_init_auto_r)(cmd_ln *);
    int (*fe_free)(fe *);
    void (*fe_start_stream)(fe *);
    int (*fe_start_utt)(fe *);
    int (*fe_process_frames)(fe *, const int16_t **, size_t *, float **, int32_t *count, int32_t *first);
    fsg_model *(*fsg_model_init)(const char *, void *logmath, float weight, int32_t states);
    int (*fsg_model_free)(fsg_model *);
    int (*fsg_model_word_add)(fsg_model *, const char *);
    void (*fsg_model_trans_add)(fsg_model *, int32_t, int32_t, int32_t, int32_t);
    const void *(*ps_args)(void);
    ps_decoder *(*ps_init)(cmd_ln *);
    int (*ps_free)(ps_decoder *);
    void *(*ps_get_logmath)(ps_decoder *);
    int (*ps_set_fsg)(ps_decoder *, const char *, fsg_model *);
    int (*ps_set_search)(ps_decoder *, const char *);
    int (*ps_start_stream)(ps_decoder *);
    int (*ps_start_utt)(ps_decoder *);
    int (*ps_process_cep)(ps_decoder *, float **, int count, int no_search, int full);
    int (*ps_end_utt)(ps_decoder *);
    const char *(*ps_get_hyp)(ps_decoder *, int32_t *);
    ps_seg *(*ps_seg_iter)(ps_decoder *);
    ps_seg *(*ps_seg_next)(ps_seg *);
    const char *(*ps_seg_word)(ps_seg *);
    void (*ps_seg_frames)(ps_seg *, int *, int *);
    int32_t (*ps_seg_prob)(ps_seg *, int32_t *acoustic, int32_t *language, int32_t *back);
};

// The coefficients of a cepstrum.
enum { CEPSTRUM = 13 };

struct apus_sphinx {
    const apus_sphinx_library *library;
    ps_decoder *decoder;
    // Another one than the decoder's, which would hand its last samples to the decoder.
    fe *front;
    // The cepstra of the utterance, and how many of them the decoder has.
    float (*cepstra)[CEPSTRUM];
    size_t count, capacity, heard;
    float mean[CEPSTRUM];
    int is_open;
};

int apus_sphinx_open(const char *pocketsphinx, const char *sphinxbase, apus_sphinx_library **out) {
    *out = NULL;
    apus_sphinx_library *library = calloc(1, sizeof(apus_sphinx_library));
    if (library == NULL) return APUS_SPHINX_NO_MEMORY;
    void *base = dlopen(sphinxbase, RTLD_NOW | RTLD_LOCAL);
    void *sphinx = base == NULL ? NULL : dlopen(pocketsphinx, RTLD_NOW | RTLD_LOCAL);
    if (sphinx == NULL) goto failed;
    const struct {
        void **to;
        void *from;
        const char *name;
    } functions[] = {
#define FUNCTION(from, name) {(void **)&library->name, from, #name}
        FUNCTION(base, cmd_ln_init), FUNCTION(base, cmd_ln_free_r), FUNCTION(base, err_set_logfp),
        FUNCTION(base, fe_init_auto_r), FUNCTION(base, fe_free), FUNCTION(base, fe_start_stream),
        FUNCTION(base, fe_start_utt), FUNCTION(base, fe_process_frames),
        FUNCTION(base, fsg_model_init), FUNCTION(base, fsg_model_free), FUNCTION(base, fsg_model_word_add),
        FUNCTION(base, fsg_model_trans_add), FUNCTION(sphinx, ps_args), FUNCTION(sphinx, ps_init),
        FUNCTION(sphinx, ps_free), FUNCTION(sphinx, ps_get_logmath), FUNCTION(sphinx, ps_set_fsg),
        FUNCTION(sphinx, ps_set_search), FUNCTION(sphinx, ps_start_stream), FUNCTION(sphinx, ps_start_utt),
        FUNCTION(sphinx, ps_process_cep), FUNCTION(sphinx, ps_end_utt), FUNCTION(sphinx, ps_get_hyp),
        FUNCTION(sphinx, ps_seg_iter), FUNCTION(sphinx, ps_seg_next), FUNCTION(sphinx, ps_seg_word),
        FUNCTION(sphinx, ps_seg_frames), FUNCTION(sphinx, ps_seg_prob),
#undef FUNCTION
    };
    for (size_t index = 0; index < sizeof(functions) / sizeof(functions[0]); index++) {
        *functions[index].to = dlsym(functions[index].from, functions[index].name);
        if (*functions[index].to == NULL) goto failed;
    }
    *out = library;
    return 0;
failed:
    free(library);
    return APUS_SPHINX_NO_LIBRARY;
}

int apus_sphinx_new(const apus_sphinx_library *library, const char *model, const char *dictionary,
                    const char *parameters, apus_sphinx **out) {
    *out = NULL;
    apus_sphinx *sphinx = calloc(1, sizeof(apus_sphinx));
    if (sphinx == NULL) return APUS_SPHINX_NO_MEMORY;
    sphinx->library = library;
    int result = APUS_SPHINX_REFUSED;
    // The file is one of each thread. Without one, nothing is logged.
    library->err_set_logfp(NULL);
    // All senones are scored, so that a score says how well the sound fits compared with the best senone of its frame,
    // and the scores of two decoders can be compared.
    // Silence is not removed: where an utterance begins and ends is the client's business. The means are subtracted
    // here.
    cmd_ln *options = library->cmd_ln_init(NULL, library->ps_args(), 1, "-hmm", model, "-dict", dictionary,
                                           "-remove_silence", "no", "-remove_noise", "yes", "-compallsen", "yes",
                                           "-bestpath", "no", "-featparams", parameters, NULL);
    if (options == NULL) goto failed;
    sphinx->decoder = library->ps_init(options);
    if (sphinx->decoder != NULL) sphinx->front = library->fe_init_auto_r(options);
    library->cmd_ln_free_r(options);
    if (sphinx->front == NULL) goto failed;
    *out = sphinx;
    return 0;
failed:
    apus_sphinx_free(sphinx);
    return result;
}

int apus_sphinx_set_grammar(apus_sphinx *sphinx, int32_t states, int32_t final, const char *const *words,
                            int32_t word_count, const apus_sphinx_arc *arcs, size_t arc_count) {
    const apus_sphinx_library *library = sphinx->library;
    library->err_set_logfp(NULL);
    // 6.5 is the library's default for the weight of the language.
    fsg_model *model = library->fsg_model_init("apus", library->ps_get_logmath(sphinx->decoder), 6.5f, states);
    if (model == NULL) return APUS_SPHINX_NO_MEMORY;
    // The public members of fsg_model_t of sphinxbase/fsg_model.h, up to the final state.
    struct {
        int refcount;
        char *name;
        int32_t n_word;
        int32_t n_word_alloc;
        char **vocab;
        void *silwords;
        void *altwords;
        void *lmath;
        int32_t n_state;
        int32_t start_state;
        int32_t final_state;
    } *fields = (void *)model;
    fields->start_state = 0;
    fields->final_state = final;
    for (int32_t word = 0; word < word_count; word++) {
        if (library->fsg_model_word_add(model, words[word]) != word) goto failed;
    }
    for (size_t arc = 0; arc < arc_count; arc++) {
        library->fsg_model_trans_add(model, arcs[arc].from, arcs[arc].to, 0, arcs[arc].word);
    }
    if (library->ps_set_fsg(sphinx->decoder, "apus", model) != 0) goto failed;
    library->fsg_model_free(model);  // The decoder has a reference of its own.
    return library->ps_set_search(sphinx->decoder, "apus") == 0 ? 0 : APUS_SPHINX_REFUSED;
failed:
    library->fsg_model_free(model);
    return APUS_SPHINX_REFUSED;
}

static int start(apus_sphinx *sphinx) {
    const apus_sphinx_library *library = sphinx->library;
    // The utterance before was given up, or begins again.
    if (sphinx->is_open && library->ps_end_utt(sphinx->decoder) != 0) return APUS_SPHINX_REFUSED;
    sphinx->is_open = 0;
    sphinx->heard = 0;
    if (library->ps_start_stream(sphinx->decoder) != 0) return APUS_SPHINX_REFUSED;
    if (library->ps_start_utt(sphinx->decoder) != 0) return APUS_SPHINX_REFUSED;
    sphinx->is_open = 1;
    return 0;
}

int apus_sphinx_begin(apus_sphinx *sphinx) {
    const apus_sphinx_library *library = sphinx->library;
    library->err_set_logfp(NULL);
    sphinx->count = sphinx->heard = 0;
    library->fe_start_stream(sphinx->front);
    return library->fe_start_utt(sphinx->front) == 0 ? 0 : APUS_SPHINX_REFUSED;
}

// The decoder hears the cepstra that it does not have yet, less the mean.
static int process(apus_sphinx *sphinx) {
    const apus_sphinx_library *library = sphinx->library;
    while (sphinx->heard < sphinx->count) {
        float values[64][CEPSTRUM], *rows[64];
        int count = 0;
        for (; count < 64 && sphinx->heard < sphinx->count; count++, sphinx->heard++) {
            for (size_t index = 0; index < CEPSTRUM; index++)
                values[count][index] = sphinx->cepstra[sphinx->heard][index] - sphinx->mean[index];
            rows[count] = values[count];
        }
        if (library->ps_process_cep(sphinx->decoder, rows, count, 0, 0) < 0) return APUS_SPHINX_REFUSED;
    }
    return 0;
}

// Ends the utterance of the decoder.
static int end(apus_sphinx *sphinx) {
    if (process(sphinx) != 0) return APUS_SPHINX_REFUSED;
    // The features of a frame need the three after it. Those of the last ones are heard with copies of it.
    float last[CEPSTRUM], *rows[3] = {last, last, last};
    for (size_t index = 0; index < CEPSTRUM; index++)
        last[index] = sphinx->cepstra[sphinx->count - 1][index] - sphinx->mean[index];
    if (sphinx->library->ps_process_cep(sphinx->decoder, rows, 3, 0, 0) < 0) return APUS_SPHINX_REFUSED;
    sphinx->is_open = 0;
    return sphinx->library->ps_end_utt(sphinx->decoder) == 0 ? 0 : APUS_SPHINX_REFUSED;
}

// The mean of the cepstra, without those of no energy, as the library has it.
static void set_mean(apus_sphinx *sphinx) {
    double sum[CEPSTRUM] = {0};
    size_t count = 0;
    for (size_t frame = 0; frame < sphinx->count; frame++) {
        if (sphinx->cepstra[frame][0] < 0) continue;
        count++;
        for (size_t index = 0; index < CEPSTRUM; index++) sum[index] += sphinx->cepstra[frame][index];
    }
    for (size_t index = 0; index < CEPSTRUM; index++)
        sphinx->mean[index] = count == 0 ? 0 : (float)(sum[index] / (double)count);
}

// The decoder hears what was fed. After an end, and while it has few cepstra, it begins again: the mean of few is not that
// of the utterance.
static int hear(apus_sphinx *sphinx) {
    if (sphinx->heard == sphinx->count) return 0;
    if (!sphinx->is_open || sphinx->heard < APUS_SPHINX_MEAN_FRAMES) {
        if (start(sphinx) != 0) return APUS_SPHINX_REFUSED;
        set_mean(sphinx);
    }
    return process(sphinx);
}

// Makes room for so many cepstra in all.
static int reserve(apus_sphinx *sphinx, size_t count) {
    if (count <= sphinx->capacity) return 0;
    size_t capacity = count * 2 + 256;
    void *larger = realloc(sphinx->cepstra, capacity * sizeof(sphinx->cepstra[0]));
    if (larger == NULL) return APUS_SPHINX_NO_MEMORY;
    sphinx->cepstra = larger;
    sphinx->capacity = capacity;
    return 0;
}

int apus_sphinx_feed(apus_sphinx *sphinx, const int16_t *samples, size_t count) {
    const apus_sphinx_library *library = sphinx->library;
    library->err_set_logfp(NULL);
    // Few samples at a time, so that all of their frames have room.
    enum { FRAMES = 32, SAMPLES = 1600 };
    while (count > 0) {
        if (reserve(sphinx, sphinx->count + FRAMES) != 0) return APUS_SPHINX_NO_MEMORY;
        float *rows[FRAMES];
        int32_t frames = FRAMES, first = 0;
        for (int32_t row = 0; row < FRAMES; row++) rows[row] = sphinx->cepstra[sphinx->count + (size_t)row];
        size_t part = count < SAMPLES ? count : SAMPLES, rest = part;
        const int16_t *next = samples;
        if (library->fe_process_frames(sphinx->front, &next, &rest, rows, &frames, &first) < 0 || rest != 0)
            return APUS_SPHINX_REFUSED;
        sphinx->count += (size_t)frames;
        samples += part;
        count -= part;
    }
    return 0;
}

int apus_sphinx_settle(apus_sphinx *sphinx) {
    // The library wants a frame at least.
    static const int16_t silence[1024];
    if (sphinx->count == 0) {
        int result = apus_sphinx_feed(sphinx, silence, sizeof(silence) / sizeof(silence[0]));
        if (result != 0) return result;
    }
    sphinx->library->err_set_logfp(NULL);
    return hear(sphinx);
}

int apus_sphinx_end(apus_sphinx *sphinx) {
    int result = apus_sphinx_settle(sphinx);
    return result != 0 || !sphinx->is_open ? result : end(sphinx);
}

int apus_sphinx_hear_as(apus_sphinx *sphinx, const apus_sphinx *other) {
    const apus_sphinx_library *library = sphinx->library;
    library->err_set_logfp(NULL);
    if (other->count == 0 || reserve(sphinx, other->count) != 0) return APUS_SPHINX_NO_MEMORY;
    memcpy(sphinx->cepstra, other->cepstra, other->count * sizeof(sphinx->cepstra[0]));
    sphinx->count = other->count;
    if (start(sphinx) != 0) return APUS_SPHINX_REFUSED;
    memcpy(sphinx->mean, other->mean, sizeof(sphinx->mean));
    return end(sphinx);
}

size_t apus_sphinx_text(apus_sphinx *sphinx, char *text, size_t capacity) {
    int32_t score = 0;
    const char *found = sphinx->library->ps_get_hyp(sphinx->decoder, &score);
    if (found == NULL) return 0;
    size_t length = strlen(found);
    if (length >= capacity) return 0;
    memcpy(text, found, length + 1);
    return length;
}

static int is_silence(const char *word) { return word[0] == '<' || word[0] == '[' || strcmp(word, "(NULL)") == 0; }

size_t apus_sphinx_words(apus_sphinx *sphinx, apus_sphinx_word *words, size_t capacity) {
    const apus_sphinx_library *library = sphinx->library;
    size_t count = 0;
    for (ps_seg *part = library->ps_seg_iter(sphinx->decoder); part != NULL; part = library->ps_seg_next(part)) {
        if (is_silence(library->ps_seg_word(part)) || count == capacity) continue;
        int start = 0, end = 0;
        int32_t score = 0;
        library->ps_seg_frames(part, &start, &end);
        library->ps_seg_prob(part, &score, NULL, NULL);
        words[count++] = (apus_sphinx_word){.first = start, .last = end + 1, .score = score};
    }
    return count;
}

int apus_sphinx_score_within(apus_sphinx *sphinx, int32_t first, int32_t last, double *score) {
    const apus_sphinx_library *library = sphinx->library;
    *score = 0;
    int is_found = 0;
    for (ps_seg *part = library->ps_seg_iter(sphinx->decoder); part != NULL; part = library->ps_seg_next(part)) {
        int start = 0, end = 0;
        int32_t acoustic = 0;
        library->ps_seg_frames(part, &start, &end);
        library->ps_seg_prob(part, &acoustic, NULL, NULL);
        int from = start > first ? start : first, to = end + 1 < last ? end + 1 : last;
        if (to <= from) continue;
        // A part across the edge counts by its share.
        *score += (double)acoustic * (to - from) / (end + 1 - start);
        is_found = 1;
    }
    return is_found ? 0 : -1;
}

void apus_sphinx_free(apus_sphinx *sphinx) {
    if (sphinx == NULL) return;
    if (sphinx->front != NULL) sphinx->library->fe_free(sphinx->front);
    if (sphinx->decoder != NULL) sphinx->library->ps_free(sphinx->decoder);
    free(sphinx->cepstra);
    free(sphinx);
}
