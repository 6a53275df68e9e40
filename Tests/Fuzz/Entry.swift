/// What libFuzzer calls for each input; every decoder has a `fuzz` of its own, linked with this file.
@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzerTestOneInput(_ start: UnsafePointer<UInt8>?, _ count: Int) -> CInt {
    // SAFETY: libFuzzer owns the input and keeps it until this call returns; it is copied here at once.
    fuzz([UInt8](UnsafeBufferPointer(start: start, count: count)))
    return 0
}
