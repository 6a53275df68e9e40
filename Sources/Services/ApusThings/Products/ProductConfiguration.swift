import ApusClientAPI
package import ApusConfiguration
package import ApusCore

/// The limits of products (D13).
package struct ProductConfiguration: ServiceConfiguration {
    /// The most products of one customer. Another one is refused with 10007. Key `accounts.products_max`.
    package var productsMax = 100

    package init() {}

    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        productsMax = try reader.int("accounts.products_max", default: productsMax, in: 1...10_000)
    }
}
