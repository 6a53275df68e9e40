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

struct apus_sphinx_library {
    cmd_ln *(*cmd_ln_init)(cmd_ln *, const void *definitions, int32_t strict, ...);
    int (*cmd_ln_free_r)(cmd_ln *);
    FILE *(*err_set_logfp)(FILE *);
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
    int (*ps_process_raw)(ps_decoder *, const int16_t *, size_t, int no_search, int full);
    int (*ps_end_utt)(ps_decoder *);
    const char *(*ps_get_hyp)(ps_decoder *, int32_t *);
    ps_seg *(*ps_seg_iter)(ps_decoder *);
    ps_seg *(*ps_seg_next)(ps_seg *);
    const char *(*ps_seg_word)(ps_seg *);
    void (*ps_seg_frames)(ps_seg *, int *, int *);
    int32_t (*ps_seg_prob)(ps_seg *, int32_t *acoustic, int32_t *language, int32_t *back);
};

struct apus_sphinx {
    const apus_sphinx_library *library;
    ps_decoder *decoder;
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
        FUNCTION(base, fsg_model_init), FUNCTION(base, fsg_model_free), FUNCTION(base, fsg_model_word_add),
        FUNCTION(base, fsg_model_trans_add), FUNCTION(sphinx, ps_args), FUNCTION(sphinx, ps_init),
        FUNCTION(sphinx, ps_free), FUNCTION(sphinx, ps_get_logmath), FUNCTION(sphinx, ps_set_fsg),
        FUNCTION(sphinx, ps_set_search), FUNCTION(sphinx, ps_start_stream), FUNCTION(sphinx, ps_start_utt),
        FUNCTION(sphinx, ps_process_raw), FUNCTION(sphinx, ps_end_utt), FUNCTION(sphinx, ps_get_hyp),
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

int apus_sphinx_new(const apus_sphinx_library *library, const char *model, const char *dictionary, apus_sphinx **out) {
    *out = NULL;
    apus_sphinx *sphinx = calloc(1, sizeof(apus_sphinx));
    if (sphinx == NULL) return APUS_SPHINX_NO_MEMORY;
    sphinx->library = library;
    int result = APUS_SPHINX_REFUSED;
    // The file is one of each thread. Without one, nothing is logged.
    library->err_set_logfp(NULL);
    // All senones are scored, so that the scores of two decoders can be compared. Noise and silence are not removed:
    // where an utterance begins and ends is the client's business.
    cmd_ln *options = library->cmd_ln_init(NULL, library->ps_args(), 1, "-hmm", model, "-dict", dictionary,
                                           "-remove_silence", "no", "-remove_noise", "yes", "-compallsen", "yes",
                                           "-bestpath", "no", NULL);
    if (options == NULL) goto failed;
    sphinx->decoder = library->ps_init(options);
    library->cmd_ln_free_r(options);
    if (sphinx->decoder == NULL) goto failed;
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

int apus_sphinx_hear(apus_sphinx *sphinx, const int16_t *samples, size_t count) {
    const apus_sphinx_library *library = sphinx->library;
    library->err_set_logfp(NULL);
    // Two windows of silence: the library wants a frame at least.
    static const int16_t silence[1024];
    if (count == 0) {
        samples = silence;
        count = sizeof(silence) / sizeof(silence[0]);
    }
    if (library->ps_start_stream(sphinx->decoder) != 0) return APUS_SPHINX_REFUSED;
    if (library->ps_start_utt(sphinx->decoder) != 0) return APUS_SPHINX_REFUSED;
    // As a whole: the means of the features are then those of the utterance.
    int taken = library->ps_process_raw(sphinx->decoder, samples, count, 0, 1);
    return library->ps_end_utt(sphinx->decoder) == 0 && taken >= 0 ? 0 : APUS_SPHINX_REFUSED;
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
    if (sphinx->decoder != NULL) sphinx->library->ps_free(sphinx->decoder);
    free(sphinx);
}
