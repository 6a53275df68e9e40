package import ApusContract
package import ApusCore
import ApusStorage
import SwiftProtobuf

// Outcomes of updates. The record of a device's outcome and the tally change in one step, so each device is counted
// once, also if it repeats its report or a node dies in between. Only devices that were offered the version are
// counted: a device of others' choice cannot stop a roll-out.

extension FirmwareRecords {
    /// Notes that a device is offered a version. Durable on return.
    ///
    /// - Throws: 8002 if the version is deleted meanwhile; 10007 after too many other writes.
    package func offered(_ release: FirmwareRelease, to device: DeviceID) async throws(ApusError) {
        let new = FirmwareOffer.with {
            ($0.image, $0.device, $0.activation) = (release.image, device.rawValue, release.activation)
        }
        guard try await store.record(Self.offers, Self.offers.key(of: new))?.body != new else { return }
        let busy = ApusError(.overloaded, "the version is being changed by too many others; try again")
        try await store.change(attempts: Self.attemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            guard let image = try await self.image(release.image), image.body.state != .deleted else {
                throw ApusError(.targetUnknown, "no such version")
            }
            return ((), RecordStep(Self.check(image), try Self.offers.put(new, fence: .none)))
        }
    }

    /// Notes the outcome of a device that was offered the version since its activation. The last one of an activation
    /// counts; a repetition has no effect.
    ///
    /// - Returns: whether it was counted.
    /// - Throws: 8002 if there is no such version, or the device was not offered it; 10007 after too many other writes.
    package func report(
        _ failed: Bool, reason: String, by device: DeviceID, _ version: FirmwareVersion, _ product: String,
        of customer: String
    ) async throws(ApusError) -> Bool {
        let busy = ApusError(.overloaded, "too many devices report at once; try again")
        return try await store.change(attempts: Self.attemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (Bool, RecordStep?) in
            let (release, image) = try await self.image(of: version, product, of: customer)
            let key = OrderedKey(.unsigned(release.image), .text(device.rawValue))
            let offer = try await store.record(Self.offers, key)
            guard release.state != .draft, offer?.body.activation == release.activation else {
                throw ApusError(.targetUnknown, "the device was not offered this version")
            }
            let new = FirmwareOutcome.with {
                ($0.image, $0.device, $0.failed, $0.reason) = (release.image, device.rawValue, failed, reason)
                $0.activation = release.activation
            }
            let found = try await store.record(Self.outcomes, Self.outcomes.key(of: new))
            guard found.map({ !$0.body.isEncoded(like: new) }) ?? true else { return (false, nil) }
            var writes = [
                Self.check(image),
                try Self.outcomes.put(new, fence: .none, if: found.map { .version($0.version) } ?? .absent),
            ]
            // An outcome of an earlier activation stays counted, and is no outcome of this one.
            let earlier = found?.body.activation == release.activation ? found?.body.failed : nil
            if earlier != failed {
                let part = Self.tallyPart(of: device.rawValue)
                let tally = try await store.record(Self.tallies, Self.tallyKey(release.image, part))
                var counted = tally?.body ?? .with { ($0.image, $0.part) = (release.image, part) }
                counted.move(from: earlier, to: failed)
                writes.append(
                    try Self.tallies.put(counted, fence: .none, if: tally.map { .version($0.version) } ?? .absent))
            }
            return (earlier != failed, RecordStep(writes))
        }.value
    }

    /// The last outcomes of devices, in the order of their ids, after one of them.
    ///
    /// - Returns: at most so many, and the last device that was looked at; nil at the end.
    /// - Throws: 8002 if there is no such version.
    package func outcomes(
        of version: FirmwareVersion, _ product: String, of customer: String, isFailed: Bool, after last: String?,
        limit: Int
    ) async throws(ApusError) -> (outcomes: [FirmwareOutcome], next: String?) {
        let image = try await image(of: version, product, of: customer).release.image
        var (found, last) = ([FirmwareOutcome](), last)
        for _ in 0..<Self.outcomePagesMax {
            let token = last.map { last in
                let key = OrderedKey(.unsigned(image), .text(last))
                return RecordToken(value: key, key: key)
            }
            let page = try await store.page(
                Self.outcomes, prefix: OrderedKey(.unsigned(image)), after: token, limit: limit)
            for record in page.records {
                last = record.body.device
                guard !isFailed || record.body.failed else { continue }
                found.append(record.body)
                if found.count == limit { return (found, last) }
            }
            if page.next == nil { return (found, nil) }
        }
        return (found, last)
    }

    /// Pages of devices that one question looks at, for those that have failed.
    private static let outcomePagesMax = 16

    /// How many devices were offered an image, of which at most 500 are counted.
    package func offerCount(of image: UInt64) async throws(ApusError) -> Int {
        try await store.page(Self.offers, prefix: OrderedKey(.unsigned(image)), limit: 500).records.count
    }

    /// Stops a roll-out if its failures require it. Returns whether it was stopped by this.
    package func stopIfFailing(
        _ version: FirmwareVersion, _ product: String, of customer: String, _ bounds: FirmwareConfiguration
    ) async throws(ApusError) -> Bool {
        guard let known = try await self.product(customer, product)?.body, let index = known.index(of: version),
            known.releases[index].state == .active
        else { return false }
        let tally = try await count(of: known.releases[index].image)
        guard known.releases[index].mustStop(tally) else { return false }
        return try await change(customer, product, bounds) { body throws(ApusError) in
            (body.stopIfFailing(version, tally: tally), Effects())
        }
    }
}

extension FirmwareTally {
    /// Counts an outcome, and no longer the earlier one of the same device.
    package mutating func move(from earlier: Bool?, to isFailed: Bool) {
        switch earlier {
        case true?: failed -= min(1, failed)
        case false?: installed -= min(1, installed)
        case nil: break
        }
        if isFailed { failed += 1 } else { installed += 1 }
    }
}
