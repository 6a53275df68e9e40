#include "CApusMedia.h"

#include <dlfcn.h>
#include <stdlib.h>

// The functions of opencore-amrnb/interf_enc.h and vo-amrwbenc/enc_if.h, as the libraries with the number 0 have them.
// Both encode one frame, take the number of the mode (3GPP TS 26.101 and 26.201, table 1a), and write the storage
// format.
typedef void *(*narrow_init)(int dtx);
typedef int (*narrow_encode)(void *state, int mode, const short *samples, unsigned char *out, int force_speech);
typedef void *(*wide_init)(void);
typedef int (*wide_encode)(void *state, int mode, const short *samples, unsigned char *out, int dtx);
typedef void (*any_exit)(void *state);

struct apus_amr {
    void *library;
    void *state;
    narrow_encode narrow;
    wide_encode wide;
    any_exit exit;
};

int apus_amr_new(const char *library, int is_wide, apus_amr **out) {
    *out = NULL;
    apus_amr *amr = calloc(1, sizeof(apus_amr));
    if (amr == NULL) return APUS_AMR_NO_MEMORY;
    int result = APUS_AMR_NO_LIBRARY;
    amr->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (amr->library == NULL) goto failed;
    void *init = dlsym(amr->library, is_wide ? "E_IF_init" : "Encoder_Interface_init");
    void *encode = dlsym(amr->library, is_wide ? "E_IF_encode" : "Encoder_Interface_Encode");
    amr->exit = (any_exit)dlsym(amr->library, is_wide ? "E_IF_exit" : "Encoder_Interface_exit");
    if (init == NULL || encode == NULL || amr->exit == NULL) goto failed;
    if (is_wide) {
        amr->wide = (wide_encode)encode;
        amr->state = ((wide_init)init)();
    } else {
        amr->narrow = (narrow_encode)encode;
        amr->state = ((narrow_init)init)(0);
    }
    result = APUS_AMR_NO_MEMORY;
    if (amr->state == NULL) goto failed;
    *out = amr;
    return 0;
failed:
    apus_amr_free(amr);
    return result;
}

int apus_amr_encode(apus_amr *amr, int mode, const int16_t *samples, uint8_t *out) {
    // Silence is encoded as speech: a frame each 20 ms, as with the other codecs.
    return amr->wide != NULL ? amr->wide(amr->state, mode, samples, out, 0)
                             : amr->narrow(amr->state, mode, samples, out, 0);
}

void apus_amr_free(apus_amr *amr) {
    if (amr == NULL) return;
    if (amr->state != NULL) amr->exit(amr->state);
    if (amr->library != NULL) dlclose(amr->library);
    free(amr);
}
