import ApusContract

/// The bounds of firmware (D13, IV-E1).
package struct FirmwareConfiguration: Sendable, Hashable {
    /// The largest image in the cluster, in bytes. A larger one is refused with 10002. Key `firmware.image_bytes_max`.
    package var imageByteCountMax = 64 << 20
    /// The images of one customer, in bytes. An image beyond it is refused with 10007. Key
    /// `firmware.customer_bytes_max`.
    package var customerByteCountMax = 256 << 20
    /// The images of all customers, in bytes; the same. Key `firmware.bytes_max`.
    package var byteCountMax = 2 << 30
    /// How often a node looks for deleted images of which something is left.
    package var sweepInterval: Duration = .seconds(60)

    /// Images of one customer, those included that are somewhere else or being removed; then 10007.
    static let imagesMax = 1000
    /// Products of one customer; then 10007.
    static let productsMax = 256
    /// Images that one node checks at the same time; one more is refused with 10007.
    static let sealingMax = 2
    /// Chunks that are read at once while an image is checked.
    static let sealPageCount = 16
    /// Records that one step removes.
    static let sweepStepCount = 64

    package init() {}
}

extension FirmwareConfiguration {
    /// The number of chunks of an image.
    static func chunkCount(_ size: UInt64) -> UInt64 {
        let chunk = UInt64(FirmwareLeaf.chunkByteCount)
        return (size + chunk - 1) / chunk
    }

    /// The bytes of a chunk; 0 behind the end of the image.
    static func chunkByteCount(_ index: UInt64, of size: UInt64) -> Int {
        let chunk = UInt64(FirmwareLeaf.chunkByteCount)
        guard index < chunkCount(size) else { return 0 }
        return Int(min(chunk, size - index * chunk))
    }
}
