public import ApusContract
public import ApusCore
import SwiftProtobuf

// Firmware of devices (IV-E1, docs/firmware.md).

extension ClientSession {
    /// A version that a device is offered.
    public struct NewFirmware: Sendable, Hashable {
        public var version: FirmwareVersion
        /// What is new in it, in the language that fits best.
        public var description: String
        /// An address of the integrator's, or the path of the request by which the device reads it.
        public var downloadURL: String
        /// In bytes.
        public var size: UInt64
        /// Of the image, in lower-case hexadecimal.
        public var sha256: String
    }

    /// The new firmware of a device, also while the device is offline (IV-E1).
    ///
    /// - Parameters:
    ///   - currentVersion: the version that the device has; nil: the one that it has reported. A version can require
    ///     another one to be installed first, so the answer depends on it.
    ///   - language: a tag of RFC 5646, such as `de`; nil: the language that the device has reported, or English.
    /// - Returns: nil if the device is offered none.
    /// - Throws: 8002 and 8003 if this account has no such device, 21003 if the device has not reported its product and
    ///   version, 21031 if the language is none, otherwise as ``ask(_:timeout:)``.
    public func queryNewFirmware(
        of device: DeviceID, currentVersion: FirmwareVersion? = nil, language: String? = nil
    ) async throws(ApusError) -> NewFirmware? {
        let offer = try await ask(
            ClientQueryFirmwareRequest.with {
                ($0.device, $0.language) = (device.rawValue, language ?? "")
                $0.currentVersion = currentVersion?.description ?? ""
            })
        guard !offer.version.isEmpty else { return nil }
        return NewFirmware(
            version: try FirmwareVersion(checking: offer.version, "the offered version"),
            description: offer.upgDescs, downloadURL: offer.downURL, size: offer.size, sha256: offer.sha256)
    }
}
