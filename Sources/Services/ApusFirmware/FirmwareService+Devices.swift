import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusStorage
import ApusThings
import CoreMetrics
import Foundation
import SwiftProtobuf

// What devices are offered, and what they load and report.

extension FirmwareService {
    /// Which device a request is about, and whose it is.
    private struct Subject {
        let device: DeviceID
        /// Empty: none.
        let customer: String
    }

    /// Registers the requests of devices, and of apps about devices.
    func addDeviceRequests(to api: inout ClientAPI) {
        api.on(ClientQueryFirmwareRequest.self) { [self] request, call throws(ApusError) in
            try await query(request, call)
        }
        api.on(ClientReadFirmwareRequest.self) { [self] request, call throws(ApusError) in
            try await read(request, call)
        }
        api.on(ClientReportFirmwareRequest.self, orderKey: { _ in "firmware.report" }) {
            [self] request, call throws(ApusError) in
            try await report(request, call)
        }
    }

    // MARK: - The question

    /// The version that a device is offered (IV-E1). An app needs the right to use the device; a customer and an
    /// operator to know it. The answer to the device itself is noted: its outcome counts.
    ///
    /// - Throws: 8002, 8003 and 12004 for a device of others; 21003 if the device has not reported what it is;
    ///   21031 for a version or language that is none.
    private func query(
        _ request: ClientQueryFirmwareRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientFirmwareOffer {
        let asked =
            try request.currentVersion.isEmpty
            ? nil : FirmwareVersion(checking: request.currentVersion, "currentVersion")
        guard request.language.isEmpty || FirmwareLanguage.isTag(request.language) else {
            throw ApusError(.badParameter, "language must be a tag such as de or pt-BR")
        }
        let subject = try await subject(request.device, call)
        let states = try await things.states(
            [FirmwareLeaf.product, FirmwareLeaf.firmware, FirmwareLeaf.language], of: subject.device,
            timeout: try call.timeLeft())
        guard let name = states[FirmwareLeaf.product], ProductID(rawValue: name) != nil else {
            throw ApusError(.propertyUnknown, "the device has not reported its product (ProReadonly._product)")
        }
        guard let current = asked ?? states[FirmwareLeaf.firmware].flatMap({ FirmwareVersion($0) }) else {
            throw ApusError(.propertyUnknown, "the device has not reported its version (ProReadonly._firmware)")
        }
        guard let product = try await records.product(subject.customer, name)?.body,
            let release = try await offer(to: subject.device, current, of: product),
            let image = try await records.image(release.image)?.body
        else { return ClientFirmwareOffer() }
        if call.session.device != nil { try await records.offered(release, to: subject.device) }
        let reported = states[FirmwareLeaf.language] ?? ""
        let language = [request.language, reported, FirmwareLanguage.standard].first { !$0.isEmpty } ?? ""
        return .with {
            $0.version = image.version
            $0.downURL =
                image.url.isEmpty ? "/v1/devices/\(subject.device)/firmware/\(image.version)/bytes" : image.url
            $0.upgDescs = FirmwareLanguage.choose(language, of: image.descriptions)
            ($0.size, $0.sha256, $0.manifest, $0.signature) = (
                image.size, image.sha256, image.manifest, image.signature
            )
        }
    }

    private func offer(
        to device: DeviceID, _ current: FirmwareVersion, of product: FirmwareProduct
    ) async throws(ApusError) -> FirmwareRelease? {
        let candidates = FirmwareRollout.candidates(for: device, current: current, in: product)
        guard !candidates.isEmpty else { return nil }
        let named = Array(Set(candidates.flatMap(\.groups)).sorted().prefix(FirmwareProduct.groupsMax))
        let groups = try await records.groups(named, with: device, product.customer, product.product)
        let tallies = try await records.counts(of: candidates.filter { $0.stopFailures > 0 }.map(\.image))
        return FirmwareRollout.offer(of: candidates, groups: groups, tallies: tallies)
    }

    // MARK: - The image

    /// A part of an image of the device's product that is active or paused.
    /// - Throws: 8002 if there is none; 21031 for an offset behind the end.
    private func read(
        _ request: ClientReadFirmwareRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientFirmwarePart {
        let version = try FirmwareVersion(checking: request.version, "the version")
        let (subject, product) = try await ownProduct(request.device, call)
        guard let release = try await records.product(subject.customer, product)?.body.release(version),
            release.sealed, release.state == .active || release.state == .paused
        else { throw ApusError(.targetUnknown, "no such version") }
        guard request.offset <= release.size else { throw ApusError(.badParameter, "the image is shorter") }
        guard request.offset < release.size else { return ClientFirmwarePart() }
        let chunk = UInt64(FirmwareLeaf.chunkByteCount)
        guard let data = try await records.chunk(release.image, request.offset / chunk) else {
            throw ApusError(.targetUnknown, "the image is not in the cluster")
        }
        let rest = data.dropFirst(Int(request.offset % chunk))
        readBytes.increment(by: Int64(rest.count))
        return .with { $0.data = Data(rest) }
    }

    // MARK: - The outcome

    private func report(
        _ request: ClientReportFirmwareRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientReportFirmwareResponse {
        let version = try FirmwareVersion(checking: request.version, "the version")
        guard request.outcome == .installed || request.outcome == .failed else {
            throw ApusError(.badParameter, "the outcome must be installed or failed")
        }
        guard request.reason.utf8.count <= FirmwareLeaf.reasonByteCountMax else {
            throw ApusError(.frameTooLarge, "a reason has at most \(FirmwareLeaf.reasonByteCountMax) bytes")
        }
        let (subject, product) = try await ownProduct(request.device, call)
        let isFailed = request.outcome == .failed
        let isNew = try await refused.countingRefusals { () async throws(ApusError) in
            try await records.report(
                isFailed, reason: request.reason, by: subject.device, version, product, of: subject.customer)
        }
        if isNew { (isFailed ? failed : installed).increment() }
        // Also for a repetition: the node that counted it may have died before it stopped the roll-out.
        if isFailed,
            try await records.stopIfFailing(version, product, of: subject.customer, configuration)
        {
            noteStopped(version, product, of: subject.customer)
        }
        return ClientReportFirmwareResponse()
    }

    // MARK: - Who asks

    private func subject(_ text: String, _ call: ClientCall) async throws(ApusError) -> Subject {
        let session = call.session
        if let own = session.device {
            guard text.isEmpty || text == own.rawValue else {
                throw ApusError(.notAllowed, "a device asks about its own firmware only")
            }
            let record = try await sessionRecords.record(of: own)
            try record?.checkEnabled()
            return Subject(device: own, customer: record?.customer?.rawValue ?? "")
        }
        let device = try DeviceID(checking: text, "the device's id")
        if session.role == .app {
            _ = try await sessions.inspect(device, for: session, subscribe: false).get()
        }
        guard let record = try await sessionRecords.record(of: device), session.mayKnow(record) else {
            throw ApusError(.targetUnknown, "no such device")
        }
        return Subject(device: device, customer: record.customer?.rawValue ?? "")
    }

    /// The device that asks, and the product that it has reported to be.
    private func ownProduct(
        _ text: String, _ call: ClientCall
    ) async throws(ApusError) -> (subject: Subject, product: String) {
        let subject = try await subject(text, call)
        let states = try await things.states(
            [FirmwareLeaf.product], of: subject.device, timeout: try call.timeLeft())
        guard let name = states[FirmwareLeaf.product], ProductID(rawValue: name) != nil else {
            throw ApusError(.propertyUnknown, "the device has not reported its product (ProReadonly._product)")
        }
        return (subject, name)
    }
}
