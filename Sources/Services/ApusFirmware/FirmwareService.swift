package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusSessions
package import ApusStorage
import ApusThings
import CoreMetrics
import Logging
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// The firmware of devices: images of integrators, roll-outs, and what devices are offered (IV-E1, docs/firmware.md).
///
/// Everything is in records, so any node answers any request, and nothing needs an owner. A device is asked about by
/// the states of its model, which can be read while the device is offline.
///
/// Concurrency model: any thread. A `Mutex` guards the list of images that this node checks.
package final class FirmwareService: NodeService, Service {
    package static let name = "Firmware"
    package static let records = FirmwareRecords.catalogue

    let configuration: FirmwareConfiguration
    let records: FirmwareRecords
    let sessionRecords: SessionRecords
    let sessions: SessionService
    let things: ThingService
    private let view: ClusterView
    /// The customers whose images are being checked at this node.
    let sealing = Mutex<[String]>([])
    private let wake: AsyncStream<Void>
    private let wakeFeed: AsyncStream<Void>.Continuation
    /// This node has deleted images, and does not wait for the node whose turn it is.
    private let sweepsAll = Mutex(false)
    private let limited: LogLimiter

    let readBytes = Counter(label: "apus_firmware_read_bytes_total")
    let uploadedBytes = Counter(label: "apus_firmware_uploaded_bytes_total")
    let installed = Counter(label: "apus_firmware_outcomes_total", dimensions: [("outcome", "installed")])
    let failed = Counter(label: "apus_firmware_outcomes_total", dimensions: [("outcome", "failed")])
    let stopped = Counter(label: "apus_firmware_stopped_total")
    let refused = Counter(label: "apus_firmware_refused_total")

    package init(_ configuration: FirmwareConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, view, limited) = (configuration, node.view, node.limited)
        (records, sessionRecords) = (FirmwareRecords(node.records), SessionRecords(node.records))
        (sessions, things) = (node.sessions, try node.ports.one(ThingService.self))
        (wake, wakeFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    package var work: [any Service] { [self] }

    // MARK: - Who asks

    /// The customer that a request names; empty for ``CustomerID/none``.
    ///
    /// - Throws: as ``ClientCall/customer(named:)``.
    func customer(named name: String, _ call: ClientCall) throws(ApusError) -> String {
        try call.customer(named: name)?.rawValue ?? ""
    }

    static func product(_ name: String) throws(ApusError) -> String {
        guard ProductID(rawValue: name) != nil else {
            throw ApusError(.badParameter, "the product must be 1 to 63 letters, digits, '-', '_' or '.'")
        }
        return name
    }

    // MARK: - What is left of deleted images

    /// Removes what is left of deleted images, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    // Nodes that start together look at different times.
                    var pause = self.configuration.sweepInterval * Double.random(in: 0.2...1)
                    while (try? await Task.sleep(for: pause)) != nil {
                        self.wakeFeed.yield()
                        pause = self.configuration.sweepInterval
                    }
                    self.wakeFeed.finish()
                }
                group.addTask {
                    // A store that cannot be used now is tried again at the next turn.
                    for await _ in self.wake { try? await self.sweep() }
                }
            }
        }
    }

    func sweepSoon() {
        sweepsAll.withLock { $0 = true }
        wakeFeed.yield()
    }

    /// Says that a roll-out has stopped by itself.
    func noteStopped(_ version: FirmwareVersion, _ product: String, of customer: String) {
        stopped.increment()
        limited.log(
            .warning, "A roll-out was stopped because too many devices have failed",
            metadata: [
                "apus.customer": "\(customer)", "apus.product": "\(product)", "apus.version": "\(version)",
            ])
    }

    /// Removes what is left of deleted images.
    private func sweep() async throws(ApusError) {
        let all = sweepsAll.withLock { flag in
            defer { flag = false }
            return flag
        }
        try await records.sweep(configuration) { [view] image in
            all || view.isLocal(ShardID(key: "firmware/\(image.product)"))
        }
    }
}

extension FirmwareRecords {
    /// Removes what is left of deleted images.
    ///
    /// - Parameter isMine: nodes share the work by it. If two do the same, the second finds less to remove.
    package func sweep(
        _ bounds: FirmwareConfiguration, isMine: (FirmwareImage) -> Bool
    ) async throws(ApusError) {
        var token: RecordToken?
        repeat {
            let page = try await store.page(
                Self.images, by: "deleted", after: token, limit: FirmwareConfiguration.sweepStepCount)
            for image in page.records where isMine(image.body) { try await erase(image, bounds) }
            token = page.next
        } while token != nil
    }

    /// Removes the chunks, outcomes, offers and tallies of a deleted image, and then its record.
    ///
    /// Each step removes at most ``FirmwareConfiguration/sweepStepCount`` records. If the node dies, another one begins
    /// again; what is gone is not removed twice. The customer has the bytes back with the last step.
    func erase(_ image: Record<FirmwareImage>, _ bounds: FirmwareConfiguration) async throws(ApusError) {
        let (number, step) = (image.body.number, FirmwareConfiguration.sweepStepCount)
        let chunkCount = image.body.url.isEmpty ? FirmwareConfiguration.chunkCount(image.body.size) : 0
        var index: UInt64 = 0
        while index < chunkCount {
            let end = min(chunkCount, index + UInt64(step))
            try await store.commit(
                RecordStep((index..<end).map { Self.chunks.erase(Self.chunkKey(number, $0), fence: .none) }))
            index = end
        }
        while true {
            let found = try await store.page(Self.outcomes, prefix: Self.key(number), limit: step).records
            guard !found.isEmpty else { break }
            try await store.commit(RecordStep(found.map { Self.outcomes.erase($0.key, fence: .none) }))
        }
        while true {
            let found = try await store.page(Self.offers, prefix: Self.key(number), limit: step).records
            guard !found.isEmpty else { break }
            try await store.commit(RecordStep(found.map { Self.offers.erase($0.key, fence: .none) }))
        }
        var last = Effects()
        last.writes = (0..<Self.tallyPartCount).map { Self.tallies.erase(Self.tallyKey(number, $0), fence: .none) }
        last.writes.append(Self.images.erase(image.key, fence: .none, if: .version(image.version)))
        (last.bytes, last.images) = (image.body.url.isEmpty ? -Int64(image.body.size) : 0, -1)
        do throws(ApusError) {
            try await change(image.body.customer, image.body.product, bounds) { [last] _ throws(ApusError) in
                guard try await self.image(number) != nil else { throw ApusError(.targetUnknown) }
                return ((), last)
            }
        } catch {
            // Another node was faster.
            guard error.code == .targetUnknown else { throw error }
        }
    }
}
