package import ApusCore
import CApusZstd
package import NIOCore

/// Compresses and decompresses payloads of the control lane with zstd level 1 (D3).
///
/// Concurrency model: a value that owns two C contexts. Its owner uses it exclusively, behind a lock or on one event
/// loop.
package struct ZstdCodec: ~Copyable, Sendable {
    // Created at the first use and freed once in deinit. Nothing else sees the pointers.
    private nonisolated(unsafe) var compressor: OpaquePointer?  // SAFETY: the compiler keeps the value's use exclusive.
    private nonisolated(unsafe) var decompressor: OpaquePointer?  // SAFETY: as `compressor`.

    /// Makes a codec without contexts. Each is created at its first use, because an idle one takes 160 KiB.
    package init() {}

    deinit {
        ZSTD_freeCCtx(compressor)
        ZSTD_freeDCtx(decompressor)
    }

    /// Compresses the payload. Returns nil if the result is not smaller.
    package mutating func compress(_ payload: ByteBuffer) -> ByteBuffer? {
        if compressor == nil { compressor = ZSTD_createCCtx() }
        let bound = ZSTD_compressBound(payload.readableBytes)
        var output = ByteBufferAllocator().buffer(capacity: bound)
        let written = output.writeWithUnsafeMutableBytes(minimumWritableBytes: bound) { target in
            // SAFETY: both pointers are valid for the counts given, within these closures.
            payload.withUnsafeReadableBytes { source in
                let size = ZSTD_compressCCtx(
                    compressor, target.baseAddress, target.count, source.baseAddress, source.count, 1)
                return ZSTD_isError(size) == 0 ? size : 0
            }
        }
        return written > 0 && written < payload.readableBytes ? output : nil
    }

    /// Decompresses a payload. Its size is read from the frame's header and checked before memory is allocated for it.
    ///
    /// - Throws: 10002 if the size is over the limit or missing, 10001 if the payload cannot be decompressed.
    package mutating func decompress(_ payload: ByteBuffer, byteCountMax: Int) throws(ApusError) -> ByteBuffer {
        // SAFETY: the pointer is valid for the count given, within the closure.
        let announced = payload.withUnsafeReadableBytes { ZSTD_getFrameContentSize($0.baseAddress, $0.count) }
        // The library's two error values are the largest numbers, so the one comparison covers them.
        guard announced <= UInt64(byteCountMax) else {
            throw ApusError(.frameTooLarge, "a compressed payload's size is over the limit, or unknown")
        }
        if decompressor == nil { decompressor = ZSTD_createDCtx() }
        let size = Int(announced)
        var output = ByteBufferAllocator().buffer(capacity: size)
        var isWhole = false
        output.writeWithUnsafeMutableBytes(minimumWritableBytes: size) { target in
            // SAFETY: both pointers are valid for the counts given, within these closures.
            payload.withUnsafeReadableBytes { source in
                let written = ZSTD_decompressDCtx(
                    decompressor, target.baseAddress, size, source.baseAddress, source.count)
                // Errors are among the largest numbers, and never equal the announced size.
                isWhole = written == size
                return isWhole ? size : 0
            }
        }
        guard isWhole else { throw ApusError(.malformed, "a compressed payload cannot be read") }
        return output
    }
}
