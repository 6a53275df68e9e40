public import ApusClient
public import ApusContract
public import ApusCore
import Foundation
public import Logging
import SwiftProtobuf
import Synchronization

/// Keeps the firmware of a device up to date (IV-E1, docs/firmware.md).
///
///     let updater = try FirmwareUpdater(
///         session: session, publicKey: key, product: "acme-doorbell-2", current: version,
///         directory: "/var/lib/doorbell", log: log
///     ) { path, version in … }
///     try await updater.run()
///
/// A version is loaded into a file, and goes on where it was after the loss of a connection, the death of a node and a
/// restart of the device. It is handed to `install` only if the maker's signature, the product, the version, the size
/// and the hash are right. The device reports its progress as the state `ProReadonly._update`, and the outcome.
///
/// **Restart.** `install` may restart the device and not return. If the device then runs the version, it reports that
/// it is installed, otherwise that it has failed.
///
/// Isolation: `Sendable`; ``run()`` and ``update()`` are not called at the same time, and one updater uses a directory.
public final class FirmwareUpdater: Sendable {
    /// Installs the image in the file. An error is reported as the reason of the failure.
    public typealias Install = @Sendable (_ path: String, _ version: FirmwareVersion) async throws(ApusError) -> Void
    /// Loads bytes of an image that is not in the cluster: from the offset on, at most 1 MiB; none at the end.
    public typealias Fetch = @Sendable (_ url: String, _ offset: UInt64) async throws(ApusError) -> [UInt8]

    /// Attempts for one version; then it is left until another one is offered.
    public static let attemptsMax = 3
    /// What is loaded is on the disk after so many bytes.
    private static let syncByteCount: UInt64 = 1 << 20

    private let session: ClientSession
    private let check: FirmwareCheck
    private let product: String
    private let files: FirmwareFiles
    private let interval: Duration
    private let rateMax: Int?
    private let fetch: Fetch?
    private let install: Install
    private let log: Logger
    private let running: Mutex<FirmwareVersion>

    /// - Parameters:
    ///   - session: the device's own.
    ///   - publicKey: the 32 bytes of the maker's Ed25519 public key (`apus firmware keygen`).
    ///   - current: the version that the device runs.
    ///   - directory: for the image while it loads; created if it is missing.
    ///   - sizeMax: the largest image that is loaded, in bytes.
    ///   - interval: how often ``run()`` asks for a new version.
    ///   - rateMax: the most bytes that are loaded in a second, so that pictures go on meanwhile; nil: any number.
    ///   - fetch: loads images that are somewhere else; nil: such a version fails with 21025.
    /// - Throws: 21031 if the key or the product is not valid, 10021 if the directory cannot be used.
    public init(
        session: ClientSession, publicKey: [UInt8], product: String, current: FirmwareVersion, directory: String,
        sizeMax: UInt64 = 64 << 20, interval: Duration = .seconds(3600), rateMax: Int? = nil, fetch: Fetch? = nil,
        log: Logger, install: @escaping Install
    ) throws(ApusError) {
        check = try FirmwareCheck(key: publicKey, product: product, sizeMax: sizeMax)
        files = try FirmwareFiles(directory: directory)
        (self.session, self.product, self.interval, self.log) = (session, product, interval, log)
        (self.rateMax, self.fetch, self.install) = (rateMax, fetch, install)
        running = Mutex(current)
    }

    /// The version that the device runs.
    public var current: FirmwareVersion { running.withLock { $0 } }

    /// Reports what the device is, and updates it when there is a new version, until the task is cancelled. Failures of
    /// an update, such as a full disk, are reported and logged; the device goes on.
    ///
    /// - Throws: what lasts: 12004 if the session is not the device's; 10006.
    public func run() async throws(ApusError) {
        try await goingOn { () throws(ApusError) in try await begin() }
        while true {
            try await goingOn { () throws(ApusError) in _ = try await update() }
            // Devices that started together ask at different times.
            let pause = interval * Double.random(in: 0.9...1.1)
            guard (try? await Task.sleep(for: pause)) != nil else { throw ApusError(.cancelled) }
        }
    }

    private func goingOn(_ work: () async throws(ApusError) -> Void) async throws(ApusError) {
        do throws(ApusError) {
            try await work()
        } catch {
            guard error.code != .cancelled, error.code != .notAllowed else { throw error }
            log.warning("The firmware was not updated", metadata: Logger.facts(of: error))
        }
    }

    /// Reports the product and the version, and how an update ended that had restarted the device.
    ///
    /// - Throws: as ``run()``; 10021 if the directory cannot be written.
    public func begin() async throws(ApusError) {
        try await report(FirmwareLeaf.product, #"{"stVal":"\#(product)"}"#)
        try await reportVersion()
        guard var state = files.state(), state.isInstalling, let manifest = try? FirmwareManifest(text: state.manifest)
        else { return }
        var progress = FirmwareProgress(version: manifest.version)
        if manifest.version == current {
            try await ended(manifest.version, &progress, nil)
            files.removePart()
            return try files.save(nil)
        }
        let error = ApusError(.actionFailed, "the device does not run the version after its restart")
        try await ended(manifest.version, &progress, error)
        (state.isInstalling, state.attempts) = (false, state.attempts + 1)
        try files.save(state)
    }

    /// Asks for a new version, and installs it.
    ///
    /// - Returns: the version that was installed; nil if there is none, or it has failed ``attemptsMax`` times.
    /// - Throws: why the offered version was not installed: 21031 and 10002 if the device may not install it, 8002 if
    ///   it was withdrawn, 10021 if it cannot be written, 21025 if it cannot be loaded; the error of `install`; 10006.
    public func update() async throws(ApusError) -> FirmwareVersion? {
        let current = current
        let offer = try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.ask(ClientQueryFirmwareRequest.with { $0.currentVersion = current.description })
        }
        guard !offer.version.isEmpty else {
            // What was begun is not offered any more.
            if let state = files.state(), state.attempts < Self.attemptsMax,
                let manifest = try? FirmwareManifest(text: state.manifest)
            {
                var progress = FirmwareProgress(version: manifest.version)
                try await withdraw(manifest.version, &progress)
            }
            return nil
        }
        let version = try FirmwareVersion(checking: offer.version, "the offered version")
        var state = files.state().flatMap { $0.manifest.isExactly(offer.manifest) ? $0 : nil }
        guard state?.attempts ?? 0 < Self.attemptsMax else { return nil }
        var progress = FirmwareProgress(version: version)
        do throws(ApusError) {
            let manifest = try check.manifest(of: offer, current: current)
            if state == nil {
                files.removePart()
                state = FirmwareFiles.State(manifest: offer.manifest)
                try files.save(state)
            }
            log.info("New firmware", metadata: ["apus.version": "\(version)"])
            try await load(manifest, offer.downURL, &progress)
            try await verify(manifest, &progress)
            state?.isInstalling = true
            try files.save(state)
            await show(&progress, .installing, 100)
            try await install(files.part, version)
        } catch {
            try await failed(version, offer.manifest, &progress, error)
            throw error
        }
        running.withLock { $0 = version }
        try await reportVersion()
        try await ended(version, &progress, nil)
        files.removePart()
        try files.save(nil)
        return version
    }

    /// Notes a failed attempt, and reports it. An update that is not at fault is not counted.
    private func failed(
        _ version: FirmwareVersion, _ manifest: String, _ progress: inout FirmwareProgress, _ error: ApusError
    ) async throws(ApusError) {
        guard error.code != .cancelled else { return }
        guard error.code != .targetUnknown else { return try await withdraw(version, &progress) }
        var state = files.state().flatMap { $0.manifest.isExactly(manifest) ? $0 : nil } ?? .init(manifest: manifest)
        (state.isInstalling, state.attempts) = (false, state.attempts + 1)
        // A full disk keeps the device from counting, not from reporting.
        try? files.save(state)
        try await ended(version, &progress, error)
    }

    /// Removes what was loaded of a version that is not offered any more, and says so.
    private func withdraw(_ version: FirmwareVersion, _ progress: inout FirmwareProgress) async throws(ApusError) {
        files.removePart()
        try files.save(nil)
        await show(&progress, .failed, 0)
    }

    // MARK: - The image

    private func load(
        _ manifest: FirmwareManifest, _ url: String, _ progress: inout FirmwareProgress
    ) async throws(ApusError) {
        var offset = files.loaded(of: manifest.size)
        var synced = offset
        while offset < manifest.size {
            await show(&progress, .downloading, Int(offset * 100 / manifest.size))
            let bytes = try await bytes(of: manifest.version, url, at: offset)
            guard !bytes.isEmpty, UInt64(bytes.count) <= manifest.size - offset else {
                files.removePart()
                throw ApusError(.badParameter, "the loaded firmware has another size than its manifest")
            }
            let isSynced = offset + UInt64(bytes.count) - synced >= Self.syncByteCount
            try files.write(bytes, at: offset, isSynced: isSynced)
            offset += UInt64(bytes.count)
            if isSynced { synced = offset }
            try await pause(after: bytes.count)
        }
    }

    private func pause(after byteCount: Int) async throws(ApusError) {
        guard let rateMax else { return }
        let pause = Duration.seconds(Double(byteCount) / Double(max(1, rateMax)))
        guard (try? await Task.sleep(for: pause)) != nil else { throw ApusError(.cancelled) }
    }

    private func bytes(
        of version: FirmwareVersion, _ url: String, at offset: UInt64
    ) async throws(ApusError) -> [UInt8] {
        if url.hasPrefix("/") {
            return try await session.untilAnswered { [session] () throws(ApusError) in
                Array(
                    try await session.ask(
                        ClientReadFirmwareRequest.with { ($0.version, $0.offset) = (version.description, offset) }
                    ).data)
            }
        }
        guard let fetch else {
            throw ApusError(.unavailable, "the firmware is not in the cluster, and this device cannot load it")
        }
        return try await fetch(url, offset)
    }

    private func verify(_ manifest: FirmwareManifest, _ progress: inout FirmwareProgress) async throws(ApusError) {
        await show(&progress, .verifying, 100)
        guard try files.hash() == manifest.sha256 else {
            files.removePart()
            throw ApusError(.badParameter, "the loaded firmware does not have the hash of its manifest")
        }
    }

    // MARK: - Reports

    private func report(_ leaf: String, _ json: String) async throws(ApusError) {
        try await session.untilAnswered { [session] () throws(ApusError) in
            try await session.reportProperty(path: "ProReadonly.\(leaf)", json: json)
        }
    }

    private func reportVersion() async throws(ApusError) {
        try await report(FirmwareLeaf.firmware, #"{"stVal":"\#(current)"}"#)
    }

    /// Reports progress once. If the report is lost, the next one follows.
    private func show(
        _ progress: inout FirmwareProgress, _ state: FirmwareProgress.State, _ percent: Int
    ) async {
        guard let json = progress.report(state, percent: percent) else { return }
        try? await session.reportProperty(path: "ProReadonly.\(FirmwareLeaf.update)", json: json)
    }

    /// Reports how an update ended, until that is acknowledged.
    private func ended(
        _ version: FirmwareVersion, _ progress: inout FirmwareProgress, _ error: ApusError?
    ) async throws(ApusError) {
        if let json = progress.report(error == nil ? .done : .failed, percent: error == nil ? 100 : 0) {
            try await report(FirmwareLeaf.update, json)
        }
        let reason = error.map { Self.cut("\($0)", to: FirmwareLeaf.reasonByteCountMax) } ?? ""
        do throws(ApusError) {
            _ = try await session.untilAnswered { [session] () throws(ApusError) in
                try await session.ask(
                    ClientReportFirmwareRequest.with {
                        ($0.version, $0.reason) = (version.description, reason)
                        $0.outcome = error == nil ? .installed : .failed
                    })
            }
        } catch {
            // The version was deleted meanwhile: nobody counts it.
            guard error.code == .targetUnknown else { throw error }
        }
    }

    /// The longest beginning of a text with so many bytes.
    private static func cut(_ text: String, to byteCountMax: Int) -> String {
        var text = text
        while text.utf8.count > byteCountMax { text.removeLast() }
        return text
    }
}
