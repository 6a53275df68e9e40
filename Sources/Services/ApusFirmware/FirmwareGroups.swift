package import ApusCore
import ApusStorage
import SwiftProtobuf

// Groups of devices that a roll-out can name.

extension FirmwareRecords {
    /// Sets the devices of a group, or adds some. Returns their number.
    ///
    /// - Throws: 10007 beyond ``FirmwareProduct/groupDevicesMax``, ``FirmwareProduct/groupsMax`` or a bound of the
    ///   customer.
    package func setGroup(
        _ name: String, to devices: [DeviceID], isAdded: Bool, _ product: String, of customer: String,
        _ bounds: FirmwareConfiguration
    ) async throws(ApusError) -> Int {
        guard devices.count <= FirmwareProduct.groupDevicesMax else {
            throw ApusError(.overloaded, "a group has at most \(FirmwareProduct.groupDevicesMax) devices")
        }
        return try await change(customer, product, bounds) { body throws(ApusError) in
            var members = Set(devices.map(\.rawValue))
            if isAdded { members.formUnion(try await self.devices(of: name, product, of: customer)) }
            try body.setGroup(name, count: members.count)
            var effects = Effects()
            // The product's record changes with each set, so two of them cannot mix their parts.
            effects.writes = try partWrites(name, members, product, customer)
            return (members.count, effects)
        }
    }

    /// Deletes a group. A roll-out that names it has no devices of it any more.
    /// - Throws: 8002 if there is no such group.
    package func deleteGroup(
        _ name: String, _ product: String, of customer: String, _ bounds: FirmwareConfiguration
    ) async throws(ApusError) {
        try await change(customer, product, bounds) { body throws(ApusError) in
            try body.setGroup(name, count: nil)
            var effects = Effects()
            effects.writes = try partWrites(name, [], product, customer)
            return ((), effects)
        }
    }

    /// The devices of a group, sorted; none if there is no such group.
    package func devices(
        of group: String, _ product: String, of customer: String
    ) async throws(ApusError) -> [String] {
        let keys = (0..<Self.groupPartCount).map { Self.partKey(customer, product, group, $0) }
        return try await store.records(Self.groupParts, keys).flatMap { $0?.body.devices ?? [] }.sorted()
    }

    private func partWrites(
        _ name: String, _ members: Set<String>, _ product: String, _ customer: String
    ) throws(ApusError) -> [RecordWrite] {
        let parts = Dictionary(grouping: members, by: Self.groupPart(of:))
        var writes: [RecordWrite] = []
        for part in 0..<Self.groupPartCount {
            guard let devices = parts[part] else {
                writes.append(Self.groupParts.erase(Self.partKey(customer, product, name, part), fence: .none))
                continue
            }
            let body = FirmwareGroupPart.with {
                ($0.customer, $0.product, $0.group, $0.part) = (customer, product, name, part)
                $0.devices = devices.sorted()
            }
            writes.append(try Self.groupParts.put(body, fence: .none))
        }
        return writes
    }
}
