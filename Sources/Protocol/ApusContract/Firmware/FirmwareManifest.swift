public import ApusCore

/// What the maker of a device signs of a version of its firmware (IV-E1, docs/firmware.md).
///
/// It is signed as its ``text``, JSON without spaces and with the members in a fixed order, so that what is signed has
/// one form:
///
///     {"product":"acme-doorbell-2","version":"1.5.0","size":1048576,"sha256":"9f86…","from":"1.2.0"}
///
/// Pure value.
public struct FirmwareManifest: Sendable, Hashable {
    /// The longest text, in bytes.
    public static let byteCountMax = 512
    /// The largest image that a manifest can be of, in bytes.
    public static let sizeMax: UInt64 = 1 << 40

    public var product: String
    public var version: FirmwareVersion
    /// Of the image, in bytes; at least 1.
    public var size: UInt64
    /// Of the image: 64 digits of lower-case hexadecimal.
    public var sha256: String
    /// The oldest version from which a device may install it; nil: any.
    public var from: FirmwareVersion?

    /// - Throws: 21031 if a field is not valid, or the version is not newer than `from`.
    public init(
        product: String, version: FirmwareVersion, size: UInt64, sha256: String, from: FirmwareVersion?
    ) throws(ApusError) {
        guard ProductID(rawValue: product) != nil else {
            throw ApusError(.badParameter, "the product must be 1 to 63 letters, digits, '-', '_' or '.'")
        }
        guard (1...Self.sizeMax).contains(size) else {
            throw ApusError(.badParameter, "an image has 1 byte to 1 TiB")
        }
        guard sha256.utf8.count == 64, sha256.utf8.allSatisfy(Self.isHexadecimal) else {
            throw ApusError(.badParameter, "sha256 must be 64 digits of lower-case hexadecimal")
        }
        if let from {
            guard from < version else { throw ApusError(.badParameter, "the version must be newer than from") }
        }
        (self.product, self.version, self.size, self.sha256, self.from) = (product, version, size, sha256, from)
    }

    /// Reads a manifest.
    ///
    /// - Throws: 21031 if the text is not that of a manifest, byte for byte.
    public init(text: String) throws(ApusError) {
        guard text.utf8.count <= Self.byteCountMax, let manifest = Self.read(text), manifest.text.isExactly(text) else {
            throw ApusError(.badParameter, "the manifest is not one that `apus firmware sign` has written")
        }
        self = manifest
    }

    /// What is signed.
    public var text: String {
        let fields = [
            #""product":"\#(product)""#, #""version":"\#(version)""#, #""size":\#(size)"#, #""sha256":"\#(sha256)""#,
            #""from":"\#(from?.description ?? "")""#,
        ]
        return "{\(fields.joined(separator: ","))}"
    }

    private static func isHexadecimal(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "a")...UInt8(ascii: "f"): true
        default: false
        }
    }

    /// The names and values have no character that JSON escapes, so a text is read by its fixed parts.
    private static func read(_ text: String) -> Self? {
        var rest = text[...]
        func take(_ before: String, until end: Character) -> String? {
            guard rest.hasPrefix(before) else { return nil }
            let tail = rest.dropFirst(before.count)
            guard let index = tail.firstIndex(of: end) else { return nil }
            rest = tail[index...]
            return String(tail[..<index])
        }
        guard let product = take(#"{"product":""#, until: "\""),
            let version = take(#"","version":""#, until: "\"").flatMap({ FirmwareVersion($0) }),
            let size = take(#"","size":"#, until: ",").flatMap({ UInt64($0) }),
            let sha256 = take(#","sha256":""#, until: "\""), let from = take(#"","from":""#, until: "\"")
        else { return nil }
        let oldest = FirmwareVersion(from)
        guard from.isEmpty || oldest != nil else { return nil }
        return try? Self(product: product, version: version, size: size, sha256: sha256, from: oldest)
    }
}

/// What devices report of their firmware, as states of their models, and how images are stored (IV-E1).
public enum FirmwareLeaf {
    /// `ProReadonly._product`: which product the device is.
    public static let product = "_product"
    /// `ProReadonly._firmware`: the version that it runs.
    public static let firmware = "_firmware"
    /// `ProReadonly._language`: the language that it speaks, a tag of RFC 5646.
    public static let language = "_language"
    /// `ProReadonly._update`: the progress of an update.
    public static let update = "_update"
    /// The bytes of an image are read and written in chunks of this size.
    public static let chunkByteCount = 32 << 10
    /// The longest reason of a failure, in bytes.
    public static let reasonByteCountMax = 256
}
