package import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusStorage
import CoreMetrics
import Foundation
import SwiftProtobuf
import Synchronization

// Requests of integrators for themselves, and of operators for any of them.

extension FirmwareService {
    /// The longest request with a chunk: its bytes in base64, and the names.
    private static let uploadByteCountMax = 48 << 10
    /// The longest request with descriptions or with a group, in JSON.
    private static let requestByteCountMax = 128 << 10

    /// Registers the requests.
    package func add(to api: inout ClientAPI) {
        addImageRequests(to: &api)
        addVersionRequests(to: &api)
        addGroupRequests(to: &api)
        addDeviceRequests(to: &api)
    }

    private func addImageRequests(to api: inout ClientAPI) {
        api.on(ClientCreateFirmwareRequest.self, byteCountMax: Self.requestByteCountMax) {
            [self] request, call throws(ApusError) in
            try await create(request, call)
        }
        api.on(ClientUploadFirmwareRequest.self, byteCountMax: Self.uploadByteCountMax) {
            [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let version = try FirmwareVersion(checking: request.version, "the version")
            try await records.upload(request.index, request.data, version, product, of: customer)
            uploadedBytes.increment(by: Int64(request.data.count))
            return ClientUploadFirmwareResponse()
        }
        api.on(ClientSealFirmwareRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let version = try FirmwareVersion(checking: request.version, "the version")
            try await seal(version, product, of: customer, call)
            return try await show(version, product, of: customer)
        }
        api.on(ClientDeleteFirmwareRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let version = try FirmwareVersion(checking: request.version, "the version")
            try await records.delete(version, product, of: customer, configuration)
            sweepSoon()
            return ClientDeleteFirmwareResponse()
        }
    }

    private func addVersionRequests(to api: inout ClientAPI) {
        api.on(ClientRollOutFirmwareRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let version = try FirmwareVersion(checking: request.version, "the version")
            let rule = try FirmwareRule(request)
            try await records.rollOut(
                version, rule, ifRevision: request.ifRevision, product, of: customer, configuration)
            return try await show(version, product, of: customer)
        }
        api.on(ClientGetFirmwareRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            return try await show(
                try FirmwareVersion(checking: request.version, "the version"), product, of: customer)
        }
        api.on(ClientListFirmwareRequest.self) { [self] request, call throws(ApusError) in
            try await list(request, call)
        }
        api.on(ClientListFirmwareOutcomesRequest.self) { [self] request, call throws(ApusError) in
            try await outcomes(request, call)
        }
    }

    private func addGroupRequests(to api: inout ClientAPI) {
        api.on(ClientSetFirmwareGroupRequest.self, byteCountMax: Self.requestByteCountMax) {
            [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let group = try Self.group(request.group)
            guard request.devices.count <= FirmwareProduct.groupDevicesMax else {
                throw ApusError(.overloaded, "a group has at most \(FirmwareProduct.groupDevicesMax) devices")
            }
            var devices: [DeviceID] = []
            for text in request.devices { devices.append(try DeviceID(checking: text, "a device's id")) }
            let count = try await refused.countingRefusals { [devices] () async throws(ApusError) in
                try await sessionRecords.check(CustomerID(rawValue: customer))
                return try await records.setGroup(
                    group, to: devices, isAdded: request.add, product, of: customer, configuration)
            }
            return .with { ($0.product, $0.group, $0.count) = (product, group, UInt32(count)) }
        }
        api.on(ClientDeleteFirmwareGroupRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            try await records.deleteGroup(try Self.group(request.group), product, of: customer, configuration)
            return ClientDeleteFirmwareGroupResponse()
        }
        api.on(ClientGetFirmwareGroupRequest.self) { [self] request, call throws(ApusError) in
            let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
            let group = try Self.group(request.group)
            guard let known = try await records.product(customer, product)?.body.groups,
                known.contains(where: { $0.name == group })
            else { throw ApusError(.targetUnknown, "no such group") }
            let devices = try await records.devices(of: group, product, of: customer)
            return .with {
                ($0.product, $0.group, $0.count, $0.devices) = (product, group, UInt32(devices.count), devices)
            }
        }
    }

    fileprivate static func group(_ name: String) throws(ApusError) -> String {
        try AccessID(checking: name, "the group").rawValue
    }

    // MARK: - Images

    private func create(
        _ request: ClientCreateFirmwareRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientFirmware {
        let customer = try customer(named: request.customer, call)
        try await sessionRecords.check(CustomerID(rawValue: customer))
        let manifest = try FirmwareManifest(text: request.manifest)
        guard request.signature.count == 64 else {
            throw ApusError(.badParameter, "the signature must have 64 bytes")
        }
        guard request.url.isEmpty || Self.isURL(request.url) else {
            throw ApusError(.badParameter, "url must be https://… with at most 508 characters")
        }
        let descriptions = request.descriptions.map { description in
            FirmwareDescription.with {
                ($0.language, $0.text) = (description.language, description.text)
            }
        }
        try FirmwareLanguage.check(descriptions)
        try await refused.countingRefusals { () async throws(ApusError) in
            try await records.create(
                manifest, signature: Array(request.signature), descriptions, url: request.url, of: customer,
                configuration)
        }
        return try await show(manifest.version, manifest.product, of: customer)
    }

    private static func isURL(_ text: String) -> Bool {
        text.hasPrefix("https://") && (9...508).contains(text.utf8.count)
            && text.utf8.allSatisfy { (0x21...0x7e).contains($0) }
    }

    /// - Throws: 10007 if this node checks ``FirmwareConfiguration/sealingMax`` images, or one of this customer.
    private func seal(
        _ version: FirmwareVersion, _ product: String, of customer: String, _ call: ClientCall
    ) async throws(ApusError) {
        try await refused.countingRefusals { () async throws(ApusError) in
            let isFree = sealing.withLock { running in
                guard running.count < FirmwareConfiguration.sealingMax, !running.contains(customer) else {
                    return false
                }
                running.append(customer)
                return true
            }
            guard isFree else { throw ApusError(.overloaded, "another image is being checked; try again") }
            defer { sealing.withLock { $0.removeAll { $0 == customer } } }
            try await records.seal(version, product, of: customer, configuration) { () throws(ApusError) in
                _ = try call.timeLeft()
                guard !Task.isCancelled else { throw ApusError(.cancelled) }
            }
        }
    }

    // MARK: - Answers

    private func show(
        _ version: FirmwareVersion, _ product: String, of customer: String
    ) async throws(ApusError) -> ClientFirmware {
        let (release, image) = try await records.image(of: version, product, of: customer)
        var answer = ClientFirmware(
            release, product, of: customer, try await records.count(of: release.image))
        (answer.manifest, answer.signature, answer.url) = (image.body.manifest, image.body.signature, image.body.url)
        answer.sha256 = image.body.sha256
        answer.descriptions = image.body.descriptions.map { description in
            .with { ($0.language, $0.text) = (description.language, description.text) }
        }
        return answer
    }

    private func list(
        _ request: ClientListFirmwareRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientListFirmwareResponse {
        let customer = try customer(named: request.customer, call)
        try await sessionRecords.check(CustomerID(rawValue: customer))
        let products: [FirmwareProduct]
        let limit = Int(min(request.pageSize == 0 ? 20 : request.pageSize, 100))
        let last = try request.pageToken.isEmpty ? nil : Self.product(request.pageToken)
        if request.product.isEmpty {
            products = try await records.products(of: customer, after: last, limit: limit)
        } else {
            products = [try await records.product(customer, try Self.product(request.product))?.body].compactMap(\.self)
        }
        var answer = ClientListFirmwareResponse()
        for product in products {
            let counts = try await records.counts(of: product.releases.map(\.image))
            let keys = product.releases.map { FirmwareRecords.key($0.image) }
            let images = keys.isEmpty ? [] : try await records.store.records(FirmwareRecords.images, keys)
            for (release, image) in zip(product.releases, images) {
                var one = ClientFirmware(
                    release, product.product, of: customer, counts[release.image] ?? FirmwareCount())
                (one.sha256, one.url) = (image?.body.sha256 ?? "", image?.body.url ?? "")
                answer.firmware.append(one)
            }
            answer.groups += product.groups.map { group in
                .with { ($0.product, $0.group, $0.count) = (product.product, group.name, group.count) }
            }
        }
        if request.product.isEmpty, products.count == limit { answer.nextPageToken = products.last?.product ?? "" }
        return answer
    }
}

extension FirmwareService {
    private func outcomes(
        _ request: ClientListFirmwareOutcomesRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientListFirmwareOutcomesResponse {
        let (customer, product) = (try customer(named: request.customer, call), try Self.product(request.product))
        let version = try FirmwareVersion(checking: request.version, "the version")
        let last = request.pageToken.isEmpty ? nil : try DeviceID(checking: request.pageToken, "the page's token")
        let page = try await records.outcomes(
            of: version, product, of: customer, isFailed: request.failed, after: last?.rawValue,
            limit: Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500)))
        return .with {
            $0.outcomes = page.outcomes.map { outcome in
                .with {
                    $0.device = outcome.device
                    ($0.outcome, $0.reason) = (outcome.failed ? .failed : .installed, outcome.reason)
                }
            }
            $0.nextPageToken = page.next ?? ""
        }
    }
}

extension FirmwareRule {
    /// - Throws: 21031 for too many groups, a name that none can have, or a group that is named twice.
    fileprivate init(_ request: ClientRollOutFirmwareRequest) throws(ApusError) {
        guard request.groups.count <= FirmwareProduct.groupsMax, Set(request.groups).count == request.groups.count
        else { throw ApusError(.badParameter, "at most \(FirmwareProduct.groupsMax) different groups are expected") }
        for name in request.groups { _ = try FirmwareService.group(name) }
        self.init(
            state: FirmwareRollOutState(rawValue: request.state.rawValue) ?? .unspecified,
            percentage: request.percentage, groups: request.groups, stopFailures: request.stopFailures,
            stopFailurePercent: request.stopFailurePercent)
    }
}

extension ClientFirmware {
    fileprivate init(
        _ release: FirmwareRelease, _ product: String, of customer: String, _ count: FirmwareCount
    ) {
        self.init()
        self.customer = customer.isEmpty ? CustomerID.none : customer
        (self.product, version, size) = (product, release.version, release.size)
        (from, sealed, revision) = (release.from, release.sealed, release.revision)
        state = ClientRollOutState(rawValue: release.state.rawValue) ?? .unspecified
        (percentage, groups) = (release.percentage, release.groups)
        (stopFailures, stopFailurePercent) = (release.stopFailures, release.stopFailurePercent)
        (installed, failed) = (count.installed, count.failed)
    }
}
