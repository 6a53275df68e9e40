package import ApusContract
package import ApusCore
import ApusCrypto
import ApusStorage
package import Foundation
import SwiftProtobuf

// Images: from the manifest over the chunks to the seal, and their deletion.

extension FirmwareRecords {
    /// Adds a version by its manifest. If there is one with the same manifest, its descriptions are replaced.
    ///
    /// - Parameter url: where the image is; empty: in the cluster, to be uploaded.
    /// - Throws: 10002 for an image over ``FirmwareConfiguration/imageByteCountMax``; 10007 beyond another bound; 10030
    ///   if there is another image of this version.
    package func create(
        _ manifest: FirmwareManifest, signature: [UInt8], _ descriptions: [FirmwareDescription], url: String,
        of customer: String, _ bounds: FirmwareConfiguration
    ) async throws(ApusError) {
        guard !url.isEmpty || manifest.size <= bounds.imageByteCountMax else {
            throw ApusError(.frameTooLarge, "an image in the cluster has at most \(bounds.imageByteCountMax) bytes")
        }
        let new = FirmwareImage.with {
            ($0.number, $0.customer, $0.product) = (UInt64.random(in: 1...UInt64.max), customer, manifest.product)
            ($0.version, $0.state) = (manifest.version.description, url.isEmpty ? .uploading : .sealed)
            ($0.manifest, $0.signature, $0.url) = (manifest.text, Data(signature), url)
            ($0.size, $0.sha256, $0.descriptions) = (manifest.size, manifest.sha256, descriptions)
        }
        try await change(customer, manifest.product, bounds) { product throws(ApusError) in
            var effects = Effects()
            if let index = product.index(of: manifest.version),
                let known = try await image(product.releases[index].image),
                known.body.manifest.isExactly(manifest.text),
                known.body.url.isExactly(url)
            {
                var replaced = known.body
                (replaced.signature, replaced.descriptions) = (new.signature, descriptions)
                guard !replaced.isEncoded(like: known.body) else { return ((), effects) }
                effects.writes = [try Self.images.put(replaced, fence: .none, if: .version(known.version))]
                return ((), effects)
            }
            try product.add(manifest, image: new.number, isSealed: !url.isEmpty)
            effects.writes = [try Self.images.put(new, fence: .none, if: .absent)]
            (effects.bytes, effects.images) = (url.isEmpty ? Int64(manifest.size) : 0, 1)
            return ((), effects)
        }
    }

    /// The record of a version's image.
    /// - Throws: 8002 if there is no such version.
    func image(
        of version: FirmwareVersion, _ product: String, of customer: String
    ) async throws(ApusError) -> (release: FirmwareRelease, image: Record<FirmwareImage>) {
        guard let found = try await self.product(customer, product) else {
            throw ApusError(.targetUnknown, "no such product")
        }
        let release = try found.body.release(version)
        guard let image = try await image(release.image), image.body.state != .deleted else {
            throw ApusError(.targetUnknown, "no such version")
        }
        return (release, image)
    }

    /// Writes a chunk of an image. A repetition has no effect.
    ///
    /// - Throws: 8002 if there is no such version; 21031 for a chunk that the image does not have, or of another
    ///   length; 10030 if the image is sealed and has other bytes there.
    package func upload(
        _ index: UInt32, _ data: Data, _ version: FirmwareVersion, _ product: String, of customer: String
    ) async throws(ApusError) {
        let busy = ApusError(.versionConflict, "the image is being changed by others")
        try await store.change(attempts: 8, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            let image = try await self.image(of: version, product, of: customer).image
            let expected = FirmwareConfiguration.chunkByteCount(UInt64(index), of: image.body.size)
            guard image.body.url.isEmpty, expected > 0, data.count == expected else {
                throw ApusError(.badParameter, "chunk \(index) of this image has \(expected) bytes")
            }
            guard image.body.state != .sealed else {
                guard try await chunk(image.body.number, UInt64(index)) == data else {
                    throw ApusError(.versionConflict, "the image is sealed")
                }
                return ((), nil)
            }
            let new = FirmwareChunk.with { ($0.image, $0.index, $0.data) = (image.body.number, index, data) }
            var writes = [try Self.chunks.put(new, fence: .none)]
            if image.body.state == .sealing {
                // The check that goes on then finds that it has read another image.
                var open = image.body
                open.state = .uploading
                writes.append(try Self.images.put(open, fence: .none, if: .version(image.version)))
            } else {
                writes.append(Self.check(image))
            }
            return ((), RecordStep(writes))
        }
    }

    /// Checks the hash of an uploaded image, and closes the image. A sealed image stays as it is.
    ///
    /// The image is read in pages of ``FirmwareConfiguration/sealPageCount`` chunks. If the node dies, the request can
    /// be repeated and begins again.
    ///
    /// - Parameter goesOn: called before each page; what it throws ends the check.
    /// - Throws: 8002 if there is no such version, or a chunk is missing; 21031 if the hash is another one: in both
    ///   cases chunks can be uploaded again; 10030 if a chunk was uploaded meanwhile.
    package func seal(
        _ version: FirmwareVersion, _ product: String, of customer: String, _ bounds: FirmwareConfiguration,
        goesOn: () throws(ApusError) -> Void
    ) async throws(ApusError) {
        let found = try await image(of: version, product, of: customer).image
        guard found.body.state != .sealed else { return }
        var body = found.body
        body.state = .sealing
        // Also where it is being checked already: the check of a dead node does not count.
        let mark = try await store.commit(Self.images.put(body, fence: .none, if: .version(found.version)))
        let refusal: ApusError?
        do throws(ApusError) {
            let hash = try await hash(of: body, goesOn)
            refusal =
                hash == body.sha256
                ? nil : ApusError(.badParameter, "the uploaded bytes do not have the hash of the manifest")
        } catch {
            guard error.code == .badParameter || error.code == .targetUnknown else { throw error }
            refusal = error
        }
        body.state = refusal == nil ? .sealed : .uploading
        if let refusal {
            try await store.commit(Self.images.put(body, fence: .none, if: .version(mark)))
            throw refusal
        }
        try await change(customer, product, bounds) { [body] product throws(ApusError) in
            try product.seal(version, image: body.number)
            guard try await image(body.number)?.version == mark else {
                throw ApusError(.versionConflict, "the image was changed while it was checked")
            }
            var effects = Effects()
            effects.writes = [try Self.images.put(body, fence: .none, if: .version(mark))]
            return ((), effects)
        }
    }

    private func hash(
        of image: FirmwareImage, _ goesOn: () throws(ApusError) -> Void
    ) async throws(ApusError) -> String {
        let count = FirmwareConfiguration.chunkCount(image.size)
        var hash = SHA256()
        var index: UInt64 = 0
        while index < count {
            try goesOn()
            let last = index == 0 ? nil : Self.chunkKey(image.number, index - 1)
            let page = try await store.page(
                Self.chunks, prefix: Self.key(image.number), after: last.map { RecordToken(value: $0, key: $0) },
                limit: FirmwareConfiguration.sealPageCount)
            let before = index
            for chunk in page.records {
                guard UInt64(chunk.body.index) == index else { break }
                hash.update(data: chunk.body.data)
                index += 1
            }
            guard index > before else { throw ApusError(.targetUnknown, "chunk \(index) of \(count) is missing") }
            // Others of this node come between two pages.
            await Task.yield()
        }
        return Hexadecimal.text(hash.finalize())
    }

    /// Deletes a version. What belongs to it is removed afterwards.
    /// - Throws: 8002 if there is no such version.
    package func delete(
        _ version: FirmwareVersion, _ product: String, of customer: String, _ bounds: FirmwareConfiguration
    ) async throws(ApusError) {
        try await change(customer, product, bounds) { product throws(ApusError) in
            let release = try product.remove(version)
            var effects = Effects()
            if let found = try await image(release.image) {
                var deleted = found.body
                deleted.state = .deleted
                effects.writes = [try Self.images.put(deleted, fence: .none, if: .version(found.version))]
            }
            return ((), effects)
        }
    }
}
