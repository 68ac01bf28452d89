/** The library on a desktop: what the companion app would say, and how fast the library is. */
package dev.pocketserve.desktop;
