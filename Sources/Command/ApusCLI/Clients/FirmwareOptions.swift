import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ArgumentParser
import Foundation
import Logging

/// The firmware of a software camera: a file that it replaces by the next version (docs/firmware.md).
struct FirmwareOptions: ParsableArguments {
    @Option(help: "Update the firmware, and check it with the public key in this file.")
    var firmwareKey: String?
    @Option(help: "Set the version that the camera has before its first update.") var firmwareVersion = "1.0.0"
    @Option(help: "Keep the firmware in this directory.") var firmwareDirectory: String?
    @Option(help: "Ask for new firmware after this number of seconds, and again.") var firmwareInterval: Double = 60

    func validate() throws {
        guard (firmwareKey == nil) == (firmwareDirectory == nil) else {
            throw ValidationError("--firmware-key and --firmware-directory are used together.")
        }
        guard FirmwareVersion(firmwareVersion) != nil else {
            throw ValidationError("--firmware-version must be a version such as 1.5.0.")
        }
        guard (0.1...86_400).contains(firmwareInterval) else {
            throw ValidationError("--firmware-interval must be 0.1 to 86400 seconds.")
        }
    }

    /// Nil if the camera does not update itself.
    ///
    /// - Throws: 21031 if the key is none, 10021 if a file cannot be read.
    func updater(
        of product: String?, _ session: ClientSession, log: Logger
    ) throws(ApusError) -> FirmwareUpdater? {
        guard let firmwareKey, let product, let firmwareDirectory else { return nil }
        // The camera runs what it has installed, also after a restart.
        let installed = "\(firmwareDirectory)/installed.version"
        let known = try? String(contentsOfFile: installed, encoding: .utf8).trimmingCharacters(in: .newlines)
        let first = try FirmwareVersion(checking: firmwareVersion, "--firmware-version")
        let current = known.flatMap { FirmwareVersion($0) } ?? first
        return try FirmwareUpdater(
            session: session, publicKey: try FirmwareFile.key(firmwareKey), product: product, current: current,
            directory: firmwareDirectory, interval: .seconds(firmwareInterval), log: log
        ) { path, version throws(ApusError) in
            do {
                let (image, next) = ("\(firmwareDirectory)/installed.bin", "\(firmwareDirectory)/next.bin")
                try? FileManager.default.removeItem(atPath: next)
                try FileManager.default.copyItem(atPath: path, toPath: next)
                guard rename(next, image) == 0 else { throw CocoaError(.fileWriteUnknown) }
                try Data("\(version)\n".utf8).write(to: URL(fileURLWithPath: installed), options: .atomic)
            } catch {
                throw ApusError(.storageFailed, "the firmware cannot be written: \(error.localizedDescription)")
            }
            log.notice("The firmware is installed", metadata: ["apus.version": "\(version)"])
        }
    }
}
