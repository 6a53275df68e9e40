/// What libFuzzer calls for each input. Every decoder has a function of its own, which the corpus test calls too;
/// a flag of the compiler says which one this fuzzer is for.
@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzerTestOneInput(_ start: UnsafePointer<UInt8>?, _ count: Int) -> CInt {
    // SAFETY: libFuzzer owns the input and keeps it until this call returns; it is copied here at once.
    let input = [UInt8](UnsafeBufferPointer(start: start, count: count))
    #if FUZZ_LINK
    fuzzLink(input)
    #elseif FUZZ_MEDIA
    fuzzMedia(input)
    #elseif FUZZ_TRACK
    fuzzTrack(input)
    #elseif FUZZ_HEARTBEAT
    fuzzHeartbeat(input)
    #elseif FUZZ_TICKET
    fuzzTicket(input)
    #elseif FUZZ_CLAIMS
    fuzzClaims(input)
    #elseif FUZZ_CONFIGURATION
    fuzzConfiguration(input)
    #elseif FUZZ_STUN
    fuzzStun(input)
    #elseif FUZZ_TURN
    fuzzTurn(input)
    #elseif FUZZ_ENDPOINT
    fuzzEndpoint(input)
    #elseif FUZZ_CHANNEL
    fuzzChannel(input)
    #elseif FUZZ_MESSAGES
    fuzzMessages(input)
    #elseif FUZZ_CLIENT
    fuzzClient(input)
    #elseif FUZZ_TOKEN
    fuzzToken(input)
    #elseif FUZZ_CERTIFICATE
    fuzzCertificate(input)
    #elseif FUZZ_ZSTD
    fuzzZstd(input)
    #elseif FUZZ_TLS
    fuzzTls(input)
    #elseif FUZZ_DTLS
    fuzzDtls(input)
    #elseif FUZZ_HTTP
    fuzzHttp(input)
    #elseif FUZZ_REPLICA
    fuzzReplica(input)
    #elseif FUZZ_WYOMING
    fuzzWyoming(input)
    #else
    #error("scripts/fuzz names the decoder")
    #endif
    return 0
}
